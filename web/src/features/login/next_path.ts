/** Return the path to open after the login. Only paths of this application are accepted. */
export function nextPath(search: string): string {
  const next = new URLSearchParams(search).get("next") ?? "/";
  try {
    const url = new URL(next, "http://rookery.invalid");
    const isOurs = url.origin === "http://rookery.invalid" && next.startsWith("/") && !/^\/[/\\]/.test(next);
    if (!isOurs || url.pathname === "/login") return "/";
    return url.pathname + url.search + url.hash;
  } catch {
    return "/";
  }
}
