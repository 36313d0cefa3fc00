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

// Nothing is shown before it is known who asks, and of a chat nothing before its messages: they are asked for while the
// application is still on its way. Pages for people who are not signed in ask when they need it.
if (!/^\/(login|link|setup)(\/|$)/.test(location.pathname)) {
  const early = { requests: {}, socket: null };
  let key = null;
  try {
    key = localStorage.getItem("rookery.session_key");
  } catch {
    // Without storage the session key is asked for after each reload.
  }
  const headers = key ? { "Rookery-Session-Key": key } : {};
  const ask = (url) => {
    early.requests[url] = fetch(url, { credentials: "same-origin", headers });
    early.requests[url].catch(() => {});
  };
  ask("/api/v1/users/me");
  const chat = /^\/c\/([0-9a-f-]{36})$/.exec(location.pathname)?.[1];
  if (chat && key) {
    ask(`/api/v1/chats/${chat}`);
    const url = new URL(`/api/v1/chats/${chat}/stream?mark_read=false`, location.href);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(url.href, ["rookery.v1", `rookery.session.${key}`]);
    const heard = [];
    const hear = (event) => heard.push(event);
    Object.assign(socket, { onopen: hear, onmessage: hear, onclose: hear });
    early.socket = { url: url.href, socket, heard };
  }
  window.rookeryEarly = early;
}
