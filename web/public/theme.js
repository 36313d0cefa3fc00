// Runs before the first paint, so that a dark page never flashes white. A file, because the page's policy allows no
// inline script.
(() => {
  let choice = "system";
  try {
    choice = localStorage.getItem("rookery.theme") || "system";
  } catch {
    // Storage may be forbidden; the system's choice is then followed.
  }
  const dark = choice === "dark" || (choice === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
})();

// Nothing is shown before it is known who asks: that is asked for while the application is still on its way. Pages for
// people who are not signed in ask when they need it.
if (!/^\/(login|link|setup)(\/|$)/.test(location.pathname)) {
  const url = "/api/v1/users/me";
  const response = fetch(url, { credentials: "same-origin" });
  response.catch(() => {});
  window.rookeryEarly = { url, response };
}
