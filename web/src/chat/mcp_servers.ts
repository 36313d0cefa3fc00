/** Texts about MCP servers that files of a workspace define. */
import type { WorkspaceMcpServerView } from "@/api/types.gen";

/** Return whether the owner has to allow or deny the server. */
export function isWaiting(server: WorkspaceMcpServerView): boolean {
  return server.state === "asked" || server.state === "changed";
}

/** Return the command line, with quotes around arguments that need them. */
export function commandOf(server: WorkspaceMcpServerView): string {
  return [server.command, ...server.args].map(quoted).join(" ");
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
  return `Running, ${server.tools.length} ${server.tools.length === 1 ? "tool" : "tools"}`;
}
