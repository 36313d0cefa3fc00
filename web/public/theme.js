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
