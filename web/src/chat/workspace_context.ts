/** What a workspace tells the agent, in words. */
import type { ContextItemView } from "@/api/types.gen";

const STATES: Record<string, string> = {
  truncated: "Too long: only its beginning is used.",
  oversize: "Too large: it is not used.",
  unreadable: "It cannot be read.",
  invalid: "It cannot be used.",
  excluded: "It is not used.",
  pending: "It does not run yet.",
};

/** What it is called: skills and servers by name, instructions by the end of their path. */
export function titleOf(item: ContextItemView): string {
  const folders = item.source.split("/");
  if (item.kind === "skill") return item.name ?? folders.at(-2) ?? item.source;
  if (item.kind === "mcp_server") {
    const count = item.tools?.length ?? 0;
    const tools = item.tools ? `, ${count} ${count === 1 ? "tool" : "tools"}` : "";
    return `${item.name ?? folders.at(-1) ?? item.source}${tools}`;
  }
  return folders.at(-1) || item.source;
}

/** What is wrong with it; null when nothing is. */
export function problemOf(item: ContextItemView): string | null {
  if (item.error) return item.error;
  return item.status === "ok" ? null : (STATES[item.status] ?? item.status);
}
