/** Answers to the questions of an MCP server: how they are edited, checked, and sent. */
import type { FormField, ServerQuestion } from "@/api/types.gen";

/** A value in a form. A switch that was not touched is undefined. */
export type Entry = string | boolean | string[] | undefined;
export type Entries = Record<string, Entry>;

/** The kinds of fields that a form can show. A newer server may have others. */
const KINDS = new Set<string>(["text", "number", "integer", "boolean", "choice", "choices"]);

export const isKnown = (field: FormField) => KINDS.has(field.kind);

/** Return whether the user can answer here. A question can always be declined. */
export function isAnswerable(question: ServerQuestion): boolean {
  if (question.url) return siteOf(question.url) !== null;
  return (question.fields ?? []).every((field) => isKnown(field) || !field.required);
}

/** Return the host of an address that can be opened; null for other addresses. */
export function siteOf(url: string): string | null {
  try {
    const { protocol, host } = new URL(url);
    return protocol === "https:" || protocol === "http:" ? host : null;
  } catch {
    return null;
  }
}

export function initialEntry(field: FormField): Entry {
  const { default: value, kind, format } = field;
  if (kind === "choices") return Array.isArray(value) ? value : [];
  if (kind === "boolean") return typeof value === "boolean" ? value : undefined;
  if (value === null || value === undefined) return "";
  return format === "date-time" ? localTime(String(value)) : String(value);
}

export function initialEntries(question: ServerQuestion): Entries {
  return Object.fromEntries((question.fields ?? []).map((field) => [field.name, initialEntry(field)]));
}

/** Return what is wrong with an entry, if this can be seen here. The server checks everything again. */
export function problemOf(field: FormField, entry: Entry): string | undefined {
  const { kind, required, minimum, maximum } = field;
  if (kind === "boolean" || !isKnown(field)) return undefined;
  const size = typeof entry === "object" || kind === "text" ? sizeOf(entry) : Number(entry);
  if (sizeOf(entry) === 0) return required ? "This is needed." : undefined;
  if (kind === "choice") return undefined;
  if (kind === "number" || kind === "integer") {
    if (!Number.isFinite(size)) return "This must be a number.";
    if (kind === "integer" && !Number.isInteger(size)) return "This must be a whole number.";
  }
  const unit = { text: " characters", choices: " choices" }[kind as string] ?? "";
  if (typeof minimum === "number" && size < minimum) return `At least ${minimum}${unit}.`;
  if (typeof maximum === "number" && size > maximum) return `At most ${maximum}${unit}.`;
  return undefined;
}

const sizeOf = (entry: Entry) => (Array.isArray(entry) ? entry.length : [...String(entry ?? "").trim()].length);

/** Return the values to send. An emptied field is sent as such; otherwise the server would use the default. */
export function valuesOf(question: ServerQuestion, entries: Entries): Record<string, unknown> {
  const values: Record<string, unknown> = {};
  for (const field of question.fields ?? []) {
    if (!isKnown(field)) continue;
    const value = sentValue(field, entries[field.name]);
    if (value !== undefined) values[field.name] = value;
  }
  return values;
}

function sentValue(field: FormField, entry: Entry): unknown {
  if (field.kind === "boolean") return field.required ? entry === true : entry;
  if (Array.isArray(entry)) return entry.length > 0 || field.required || field.default ? entry : undefined;
  const text = String(entry ?? "").trim();
  if (field.kind === "number" || field.kind === "integer") return text === "" ? "" : Number(text);
  return field.format === "date-time" && text ? new Date(text).toISOString() : text;
}

/** Return a time for the browser's input of dates and times, which has no zone. */
function localTime(text: string): string {
  const time = new Date(text);
  if (Number.isNaN(time.getTime())) return "";
  return new Date(time.getTime() - time.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}
