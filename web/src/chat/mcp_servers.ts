/** MCP servers that files of a workspace name, in words. */
import type { McpServerView } from "@/api/types.gen";

/** Whether somebody has to say whether it may run. */
export function isWaiting(server: McpServerView): boolean {
  return server.state === "asked" || server.state === "changed";
}

/** The command line, with quotes where an argument would fall apart without them. */
export function commandOf(server: McpServerView): string {
  return [server.command, ...server.args].map(quoted).join(" ");
}

function quoted(word: string): string {
  return /^[\w@%+=:,./\\-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

/** Where it stands, for a list. */
export function standingOf(server: McpServerView): string {
  if (server.state === "asked") return "Waiting for your answer";
  if (server.state === "changed") return "Changed, waiting for your answer";
  if (server.state === "denied") return "Denied";
  if (server.error) return server.error;
  if (!server.running) return "Allowed, not running";
  return `Running, ${server.tools.length} ${server.tools.length === 1 ? "tool" : "tools"}`;
}
