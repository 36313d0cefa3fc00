/** Search filters as pills: `status:error` is a filter, not a word, and is removed as a whole. */

export interface Pill {
  name: string;
  /** The value as it is written, including quotes. */
  value: string;
}

export interface Choice {
  name: string;
  help: string;
  /** The possible values; if there are none, the value is typed. */
  values?: string[];
}

/** The states of a chat that a search knows, with the names that the page shows. */
export const STATES: Record<string, string> = {
  needs_you: "Needs you",
  working: "Working",
  failed: "Failed",
  idle: "Idle",
};

export const FILTERS: Choice[] = [
  { name: "status", help: "what it does", values: Object.keys(STATES) },
  { name: "has_unread", help: "not read yet", values: ["true", "false"] },
  { name: "pinned", help: "pinned", values: ["true", "false"] },
  { name: "archived", help: "in the archive", values: ["any", "true", "false"] },
  { name: "source", help: "yours or shared", values: ["created_by_me", "shared_with_me"] },
  { name: "label", help: "key=value" },
  { name: "workspace", help: "its name" },
  { name: "model", help: "its name" },
  { name: "title", help: "words of the title" },
  { name: "repo", help: "repository" },
  { name: "branch", help: "branch" },
  { name: "owner", help: "me, or a name" },
  { name: "client", help: "begun with", values: ["ui", "api", "cli"] },
  { name: "active_after", help: "a date" },
  { name: "active_before", help: "a date" },
];
const NAMES = new Set(FILTERS.map((one) => one.name));

const VALUE = String.raw`"(?:[^"\\]|\\.)*"|[^\s"]+`;
const TERM = new RegExp(String.raw`(^|\s)(-?[a-z_]+):(${VALUE})(?=\s|$)`, "gi");

/** Extract the filters from a text. With `whole`, the last word counts as complete even if no space follows it. */
export function takePills(text: string, whole = false): { pills: Pill[]; rest: string } {
  const pills: Pill[] = [];
  const rest = text.replace(TERM, (term, before: string, name: string, value: string, at: number) => {
    const isLast = at + term.length >= text.length;
    if (!NAMES.has(name.toLowerCase()) || (isLast && !whole)) return term;
    pills.push({ name: name.toLowerCase(), value });
    return before;
  });
  return { pills, rest: pills.length > 0 ? rest.replace(/\s+/g, " ").replace(/^ /, "") : text };
}

export const pillText = ({ name, value }: Pill) => `${name}:${value}`;

/** Return the query in the syntax of the API. */
export function queryOf(pills: readonly Pill[], rest: string): string {
  return [...pills.map(pillText), rest.trim()].filter(Boolean).join(" ");
}

/** Merge filters. Each name occurs once, with its newest value; only labels may occur several times. */
export function withPills(pills: readonly Pill[], more: readonly Pill[]): Pill[] {
  const names = new Set(more.map((one) => one.name).filter((name) => name !== "label"));
  const kept = pills.filter((one) => !names.has(one.name));
  return [...kept, ...more.filter((one) => !kept.some((other) => pillText(other) === pillText(one)))];
}

/** Return the filter that the server refused: its message quotes the term. */
export function refusedPill(pills: readonly Pill[], refusal: string): Pill | undefined {
  return pills.find((pill) => refusal.includes(`'${pillText(pill)}'`));
}

/** Return the words that a query looks for, without excluded ones, in lower case. */
export function wordsOf(rest: string): string[] {
  const wanted = rest.replace(/(^|\s)-("[^"]*"|\S+)/g, " ").toLowerCase();
  return (wanted.match(/[\p{L}\p{N}_]+/gu) ?? []).filter((word) => word !== "or");
}

/** Split a text into pieces: every second one is a word that is looked for. */
export function splitAtWords(text: string, words: readonly string[]): string[] {
  if (words.length === 0) return [text];
  // Longest first: of "test" and "tests", the whole word counts.
  const any = [...words].sort((a, b) => b.length - a.length).join("|");
  return text.split(new RegExp(`(?<![\\p{L}\\p{N}_])(${any})(?![\\p{L}\\p{N}_])`, "giu"));
}

/** Add `archived:any` to a query that has no such filter: a search includes archived chats by default. */
export function everywhere(query: string): string {
  return /(^|\s)archived:/i.test(query) ? query : `${query} archived:any`;
}

/** Return completions for the last word: names of filters, then their values. */
export function completions(typed: string): { text: string; label: string; help: string }[] {
  const word = /(\S*)$/.exec(typed)?.[1] ?? "";
  const before = typed.slice(0, typed.length - word.length);
  const colon = word.indexOf(":");
  if (colon >= 0) {
    const filter = FILTERS.find((one) => one.name === word.slice(0, colon).toLowerCase());
    const begun = word.slice(colon + 1).toLowerCase();
    return (filter?.values ?? [])
      .filter((value) => value.startsWith(begun))
      .map((value) => ({ text: `${before}${filter?.name}:${value} `, label: `${filter?.name}:${value}`, help: "" }));
  }
  if (word.length < 2) return [];
  return FILTERS.filter((one) => one.name.startsWith(word.toLowerCase())).map((one) => ({
    text: `${before}${one.name}:`,
    label: `${one.name}:`,
    help: one.help,
  }));
}
