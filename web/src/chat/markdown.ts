/**
 * Parses Markdown into tokens. While text arrives, only its tail is parsed again: blocks before the last two
 * non-blank ones cannot change any more. Raw HTML is kept as text, except for `<details>`.
 */
import { Lexer, type MarkedOptions, type Token, type TokenizerThis, type TokensList } from "marked";
import remend from "remend";

export type { Token, Tokens } from "marked";

export interface MathToken {
  type: "math";
  raw: string;
  text: string;
  display: boolean;
}

/** A part that can be folded. `summary` and `tokens` are parsed Markdown. */
export interface DetailsToken {
  type: "details";
  raw: string;
  open: boolean;
  summary: Token[];
  tokens: Token[];
}

/** A reference to a footnote, or (with `tokens`) the footnote itself. */
export interface FootnoteToken {
  type: "footnote-ref" | "footnote";
  raw: string;
  label: string;
  tokens?: Token[];
}

const BLOCK_MATH = /^(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n|$)/;
const INLINE_MATH = /^(?:\$\$([^\n]+?)\$\$|\\\((.+?)\\\)|\\\[(.+?)\\\])/;
// A single dollar sign begins a formula if it stands before its first character and the next one right after its last.
const DOLLAR_MATH = /^\$(?![\s$])((?:\\.|[^\\$`\n]){1,400}?)(?<!\s)\$(?![\w$])/;
// Two words in a row, or a price, as in "$5, or 3$". Commands such as \alpha are not words.
const PROSE =
  /(?<![\\A-Za-z])[A-Za-z]{2,}[,;:.]?\s+(?!\\)[A-Za-z]{2}|^[\d.,]+[,;:.]?\s+[A-Za-z]{2}|^[\w{}./:-]*\/[\w{}./:-]*$/;
const FOOTNOTE = /^ {0,3}\[\^([^\]\s]{1,60})\]:[ \t]*(.*(?:\n(?:(?: {2,}|\t)\S.*|(?=\n+(?: {4}|\t)\S)))*)(?:\n+|$)/;
const REFERENCE = /^\[\^([^\]\s]{1,60})\](?!:)/;
const DETAILS = /^<details(\s+open(?:="[^"]*")?)?\s*>\s*(?:<summary>([\s\S]*?)<\/summary>)?/i;
// Parts within parts beyond this depth are shown as text, so that no text can exhaust the stack.
const MAX_DEPTH = 6;

let depth = 0;

/** A single dollar sign may also be a price or a shell variable: then it stays text. */
const OPTIONS: MarkedOptions = {
  gfm: true,
  extensions: {
    block: [(src: string) => math(BLOCK_MATH.exec(src), true), details, footnote],
    inline: [
      (src: string) => math(INLINE_MATH.exec(src), false) ?? dollarMath(DOLLAR_MATH.exec(src)),
      (src: string) => {
        const match = REFERENCE.exec(src);
        return match ? ({ type: "footnote-ref", raw: match[0], label: match[1] ?? "" } as FootnoteToken) : undefined;
      },
    ],
    startBlock: [(src: string) => position(src, /^(?:\$\$|\\\[|<details|\[\^)/im)],
    startInline: [(src: string) => position(src, /(?<![\w$])\$|\\\(|\\\[|\[\^/)],
    renderers: {},
    childTokens: {},
  },
};

function math(match: RegExpExecArray | null, display: boolean): MathToken | undefined {
  if (!match) return undefined;
  const shown = display || match[1] !== undefined;
  return { type: "math", raw: match[0], text: (match[1] ?? match[2] ?? match[3] ?? "").trim(), display: shown };
}

function dollarMath(match: RegExpExecArray | null): MathToken | undefined {
  const text = match?.[1] ?? "";
  return match && !PROSE.test(text) ? { type: "math", raw: match[0], text, display: false } : undefined;
}

/** Read a `<details>` element up to its end tag, or to the end of the text if that has not arrived. */
function details(this: TokenizerThis, src: string): DetailsToken | undefined {
  const head = depth < MAX_DEPTH ? DETAILS.exec(src) : null;
  if (!head) return undefined;
  let open = 0;
  let end = src.length;
  let after = end;
  for (const tag of src.matchAll(/<(\/?)details\b[^>]*>/gi)) {
    open += tag[1] ? -1 : 1;
    if (open > 0) continue;
    end = tag.index;
    after = end + tag[0].length;
    break;
  }
  const body = end < head[0].length ? "" : src.slice(head[0].length, end);
  return {
    type: "details",
    raw: src.slice(0, after),
    open: head[1] !== undefined,
    summary: this.lexer.inlineTokens((head[2] ?? "Details").trim()),
    tokens: nested(this, `${body.trim()}\n`),
  };
}

function footnote(this: TokenizerThis, src: string): FootnoteToken | undefined {
  const match = depth < MAX_DEPTH ? FOOTNOTE.exec(src) : null;
  if (!match) return undefined;
  const text = (match[2] ?? "").replace(/\n(?: {1,4}|\t)/g, "\n");
  return { type: "footnote", raw: match[0], label: match[1] ?? "", tokens: nested(this, text) };
}

function nested({ lexer }: TokenizerThis, text: string): Token[] {
  depth += 1;
  try {
    return lexer.blockTokens(text, []);
  } finally {
    depth -= 1;
  }
}

function position(src: string, pattern: RegExp): number | undefined {
  const at = src.search(pattern);
  return at < 0 ? undefined : at;
}

/** Return the tokens of a complete text. */
export function lex(text: string): Token[] {
  return [...(new Lexer(OPTIONS).lex(text) as TokensList)];
}

/** Return the beginning of a text with about this length, cut at the end of a paragraph if there is one nearby. */
export function headOf(text: string, length: number): string {
  if (text.length <= length) return text;
  const at = text.lastIndexOf("\n\n", length);
  return text.slice(0, at > length / 2 ? at : length);
}

export interface Lexed {
  text: string;
  tokens: readonly Token[];
}

export const NOTHING: Lexed = { text: "", tokens: [] };

// The number of blocks at the end that may still change.
const TAIL_BLOCKS = 2;

/** Return the tokens of a text that grew since `before`. Equal to parsing all of it, except for link definitions. */
export function lexTail(before: Lexed, text: string): Lexed {
  if (text === before.text) return before;
  if (!text.startsWith(before.text) || before.text === "") return { text, tokens: lex(text) };
  let keep = before.tokens.length;
  for (let blocks = 0; keep > 0 && blocks < TAIL_BLOCKS; ) {
    keep -= 1;
    if (before.tokens[keep]?.type !== "space") blocks += 1;
  }
  const kept = before.tokens.slice(0, keep);
  const from = kept.reduce((length, token) => length + token.raw.length, 0);
  return { text, tokens: [...kept, ...lex(text.slice(from))] };
}

/** Return the tokens with unfinished markup of the last block completed, for display. */
export function completed(lexed: Lexed): readonly Token[] {
  const last = lexed.tokens.at(-1);
  if (
    !last ||
    (last.type !== "paragraph" && last.type !== "list" && last.type !== "heading" && last.type !== "blockquote")
  )
    return lexed.tokens;
  const whole = remend(last.raw);
  return whole === last.raw ? lexed.tokens : [...lexed.tokens.slice(0, -1), ...lex(whole)];
}

/** Return the URL if a link may lead there, else null. Other links are shown as text. */
export function safeHref(href: string): string | null {
  const trimmed = href.trim();
  return /^(https?:\/\/|mailto:)/i.test(trimmed) ? trimmed : null;
}

/** Return the host of a link. */
export function hostOf(href: string): string {
  try {
    return new URL(href).host;
  } catch {
    return "";
  }
}

/** Return whether the text of a link names another host than its URL. */
export function isMisleading(text: string, href: string): boolean {
  const said = /^(?:https?:\/\/)?((?:[\w-]+\.)+[a-z]{2,})(?:[/:?#]|$)/i.exec(text.trim());
  if (!said?.[1]) return false;
  const bare = (host: string) => host.toLowerCase().replace(/^www\./, "");
  return bare(said[1]) !== bare(hostOf(href).replace(/:\d+$/, ""));
}
