/** Texts about the context items of a workspace. */
import type { ContextItemView } from "@/api/types.gen";

const STATES: Record<string, string> = {
  truncated: "Too long: only its beginning is used.",
  oversize: "Too large: it is not used.",
  unreadable: "It cannot be read.",
  invalid: "It cannot be used.",
  excluded: "It is not used.",
  pending: "It does not run yet.",
};

/** Return the title of an item: the name of a skill or server, or the end of the path of instructions. */
export function titleOf(item: ContextItemView): string {
  const folders = item.source.split("/");
  if (item.kind === "skill") return item.name ?? folders.at(-2) ?? item.source;
  if (item.kind === "mcp_server") {
    const count = item.tools?.length ?? 0;
    // A server with an address is asked for its tools in each chat, so the context has none of them.
    const tools = count > 0 ? `, ${count} ${count === 1 ? "tool" : "tools"}` : "";
    return `${item.name ?? folders.at(-1) ?? item.source}${tools}`;
  }
  return folders.at(-1) || item.source;
}

/** Return the problem with an item; null if there is none. */
export function problemOf(item: ContextItemView): string | null {
  if (item.error) return item.error;
  return item.status === "ok" ? null : (STATES[item.status] ?? item.status);
}
