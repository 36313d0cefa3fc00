/** The values of template parameters in a form: how they are edited, sent, and remembered. */
import type { ParameterView } from "@/api/types.gen";
import { hasFailedStart } from "@/chat/workspace_health";

/** A value in a form. Lists are text with one entry per line. */
export type Entry = string | boolean;
export type Entries = Record<string, Entry>;

type Value = ParameterView["default"];

/** Return the value as it is edited. */
export function toEntry({ type }: Pick<ParameterView, "type">, value: unknown): Entry {
  if (type === "bool") return value === true || value === "true";
  if (Array.isArray(value)) return value.join("\n");
  return value === null || value === undefined ? "" : String(value);
}

/** Return the first values of a form: given ones, else defaults. Masks of secrets are not shown as values. */
export function initialEntries(parameters: readonly ParameterView[], given: Record<string, unknown> = {}): Entries {
  return Object.fromEntries(
    parameters.map((one) => [one.name, one.type === "secret" ? "" : toEntry(one, given[one.name] ?? one.default)]),
  );
}

/** Return the values to send. A value that is the default, or empty without a default, is left to the server. */
export function toValues(parameters: readonly ParameterView[], entries: Entries): Record<string, Value> {
  const found: Record<string, Value> = {};
  for (const one of parameters) {
    const entry = entries[one.name] ?? "";
    if (entry === toEntry(one, one.default)) continue;
    if (one.type === "list(string)")
      found[one.name] = String(entry)
        .split("\n")
        .map((line) => line.trim())
        .filter(Boolean);
    else found[one.name] = typeof entry === "string" && one.type !== "secret" ? entry.trim() : entry;
  }
  return found;
}

interface Used {
  template: string | null;
  parameters?: Record<string, unknown>;
  status?: string;
  agent_state?: string;
  startup_exit_code?: number | null;
}

const MAX_NAME = 32;

/** Return a name for a workspace with a clone of this repository; empty if its address is not complete. */
export function repositoryName(address: string, taken: readonly string[]): string {
  const last = /[/:]([^/:]+?)(?:\.git)?\/*$/.exec(address.trim())?.[1] ?? "";
  const name = last
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "-")
    .slice(0, MAX_NAME - 3)
    .replace(/^-+|-+$/g, "");
  if (name.length < 2 || !taken.includes(name)) return name.length < 2 ? "" : name;
  for (let count = 2; count < 100; count += 1) if (!taken.includes(`${name}-${count}`)) return `${name}-${count}`;
  return "";
}

const MOST = 4;
const LONGEST = 200;

/**
 * Return values to offer: those of the user's newest workspaces of the same template, then the server's suggestions.
 * Values of workspaces that failed to start, such as addresses that cannot be reached, are not offered.
 * Secrets are never offered, and numbers are typed faster. The server masks credentials, so masked values are left out.
 */
export function recentEntries(workspaces: readonly Used[], template: string, parameter: ParameterView): string[] {
  if (!["string", "list(string)"].includes(parameter.type) || parameter.options.length > 0) return [];
  const usual = toEntry(parameter, parameter.default);
  const used = workspaces
    .filter((one) => one.template === template && !hasFailedStart({ ...one, status: one.status ?? "" }))
    .map((one) => one.parameters?.[parameter.name]);
  const entries = [...used, ...(parameter.suggestions ?? [])].map((value) => String(toEntry(parameter, value)));
  const fit = entries.filter((one) => one && one !== usual && one.length <= LONGEST && !one.includes("***"));
  return [...new Set(fit)].slice(0, MOST);
}
