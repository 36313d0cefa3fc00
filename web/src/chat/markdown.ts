/**
 * Parses Markdown into tokens. While text arrives, only its tail is parsed again: blocks before the last two
 * non-blank ones cannot change any more. Raw HTML is kept as text.
 */
import { Lexer, type MarkedOptions, type Token, type TokensList } from "marked";
import remend from "remend";

export type { Token, Tokens } from "marked";

export interface MathToken {
  type: "math";
  raw: string;
  text: string;
  display: boolean;
}

const BLOCK_MATH = /^(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n|$)/;
const INLINE_MATH = /^(?:\$\$([^\n]+?)\$\$|\\\((.+?)\\\)|\\\[(.+?)\\\])/;

/** Formulas begin with `$$`, `\(` or `\[`. A single dollar sign is not a formula: it may be a price or a shell variable. */
const OPTIONS: MarkedOptions = {
  gfm: true,
  extensions: {
    block: [(src: string) => math(BLOCK_MATH.exec(src), true)],
    inline: [(src: string) => math(INLINE_MATH.exec(src), false)],
    startBlock: [(src: string) => position(src, /^(?:\$\$|\\\[)/m)],
    startInline: [(src: string) => position(src, /\$\$|\\\(|\\\[/)],
    renderers: {},
    childTokens: {},
  },
};

function math(match: RegExpExecArray | null, display: boolean): MathToken | undefined {
  if (!match) return undefined;
  const shown = display || match[1] !== undefined;
  return { type: "math", raw: match[0], text: (match[1] ?? match[2] ?? match[3] ?? "").trim(), display: shown };
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
