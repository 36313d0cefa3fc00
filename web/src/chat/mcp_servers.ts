/** Texts about MCP servers that files of a workspace define. */
import type { WorkspaceMcpServerView } from "@/api/types.gen";

/** Return whether the owner has to allow or deny the server. */
export function isWaiting(server: WorkspaceMcpServerView): boolean {
  return server.state === "asked" || server.state === "changed";
}

/** Return the address, or the command line with quotes around arguments that need them. */
export function targetOf(server: WorkspaceMcpServerView): string {
  return server.url ?? [server.command ?? "", ...server.args].map(quoted).join(" ");
}

/** Return whether the owner has to log in before the server can be used. */
export function lacksLogin(server: WorkspaceMcpServerView): boolean {
  return server.running && server.login !== null && server.login !== "connected";
}

function quoted(word: string): string {
  return /^[\w@%+=:,./\\-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

/** Return the status of the server, for a list. */
export function statusOf(server: WorkspaceMcpServerView): string {
  if (server.state === "asked") return "Waiting for your answer";
  if (server.state === "changed") return "Changed, waiting for your answer";
  if (server.state === "denied") return "Denied";
  if (server.error) return server.error;
  if (!server.running) return "Allowed, not running";
  if (lacksLogin(server)) return "Allowed, needs your login";
  const tools = `${server.tools.length} ${server.tools.length === 1 ? "tool" : "tools"}`;
  return server.url === null ? `Running, ${tools}` : `In use, ${tools}`;
}
