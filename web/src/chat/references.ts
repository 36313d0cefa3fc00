/**
 * References to files in a message. In the composer they stand in the text as `@path:12-20`, so that they can be moved
 * and deleted like words; on the way out each becomes a part at its place.
 */
import type { Part, ReferencePart, TextPart } from "@/chat/types";

/** A whole file is referred to without lines. */
export const hasLines = (reference: ReferencePart) => reference.end_line > 0;

/** How a reference is written. */
export function tokenOf(reference: ReferencePart): string {
  const { file_name, start_line, end_line } = reference;
  if (!hasLines(reference)) return `@${file_name}`;
  return `@${file_name}:${start_line}${end_line > start_line ? `-${end_line}` : ""}`;
}

export function mention(path: string): ReferencePart {
  return { type: "file-reference", file_name: path, start_line: 0, end_line: 0, content: "" };
}

// What may not follow a token: more of a name, or more of a number.
const MORE = /^(?:[\w/-]|[.:]\w)/;

interface Place {
  at: number;
  end: number;
  reference: ReferencePart;
}

/** Where references stand in a text, in order. Longer ones first: `@a:12` is not `@a:1` and a 2. */
function places(text: string, references: readonly ReferencePart[]): Place[] {
  const found: Place[] = [];
  const byLength = [...references].sort((a, b) => tokenOf(b).length - tokenOf(a).length);
  for (const reference of byLength) {
    const token = tokenOf(reference);
    for (let at = text.indexOf(token); at >= 0; at = text.indexOf(token, at + 1)) {
      const end = at + token.length;
      if (MORE.test(text.slice(end, end + 2))) continue;
      if (!found.some((one) => at < one.end && end > one.at)) found.push({ at, end, reference });
    }
  }
  return found.sort((a, b) => a.at - b.at);
}

/** The references that a text still has. */
export function usedReferences(text: string, references: readonly ReferencePart[]): ReferencePart[] {
  if (references.length === 0) return [];
  const used = new Set(places(text, references).map((one) => one.reference));
  return references.filter((one) => used.has(one));
}

/** Text and references as they go out: trimmed as the server does it, nothing empty. */
export function contentOf(text: string, references: readonly ReferencePart[]): (TextPart | ReferencePart)[] {
  const parts: (TextPart | ReferencePart)[] = [];
  let from = 0;
  const words = (to: number) => {
    const piece = text.slice(from, to).trim();
    if (piece) parts.push({ type: "text", text: piece });
  };
  for (const { at, end, reference } of places(text, references)) {
    words(at);
    parts.push(reference);
    from = end;
  }
  words(text.length);
  return parts;
}

/** A text without one of its references. */
export function withoutReference(text: string, reference: ReferencePart): string {
  let left = text;
  for (const { at, end } of places(text, [reference]).reverse())
    left = left.slice(0, at) + left.slice(end).replace(/^ /, "");
  return left;
}

/** A remark on lines, under what is typed already. */
export function withRemark(text: string, reference: ReferencePart, remark: string): string {
  const before = text.trimEnd();
  return `${before}${before ? "\n" : ""}${tokenOf(reference)} ${remark}\n`;
}

/** A file, behind what is typed already. */
export function withMention(text: string, reference: ReferencePart): string {
  return `${text}${/\S$/.test(text) ? " " : ""}${tokenOf(reference)} `;
}

/** Texts and references in order, with the space between them that trimming took. */
export function spaced(parts: readonly Part[]): (string | ReferencePart)[] {
  const pieces: (string | ReferencePart)[] = [];
  let before: Part["type"] | null = null;
  for (const part of parts) {
    if (part.type === "file-reference") {
      if (before) pieces.push(hasLines(part) ? "\n" : " ");
      pieces.push(part);
    } else if (part.type === "text") {
      if (before === "file-reference" && !/^[.,;:!?)]/.test(part.text)) pieces.push(" ");
      pieces.push(part.text);
    } else continue;
    before = part.type;
  }
  return pieces;
}

/** The name that is being typed behind an `@`, and where it begins; null when the caret is elsewhere. */
export function mentionAt(text: string, caret: number): { at: number; query: string } | null {
  const found = /(?:^|\s)@([^\s@:]*)$/.exec(text.slice(0, caret));
  return found ? { at: caret - (found[1] ?? "").length - 1, query: found[1] ?? "" } : null;
}
