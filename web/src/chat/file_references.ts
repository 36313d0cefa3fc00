/**
 * References to files in a message. In the composer a reference is text such as `@path:12-20`, so that it can be moved
 * and deleted like a word. When the message is sent, each reference becomes a part at its position.
 */
import type { Part, ReferencePart, TextPart } from "@/chat/types";

/** Return whether the reference is to lines, not to a whole file. */
export const hasLines = (reference: ReferencePart) => reference.end_line > 0;

/** Return the text of a reference in the composer. */
export function tokenOf(reference: ReferencePart): string {
  const { file_name, start_line, end_line } = reference;
  if (!hasLines(reference)) return `@${file_name}`;
  return `@${file_name}:${start_line}${end_line > start_line ? `-${end_line}` : ""}`;
}

export function mention(path: string): ReferencePart {
  return { type: "file-reference", file_name: path, start_line: 0, end_line: 0, content: "" };
}

// Characters that may not follow a token, because they would continue its name or number.
const MORE = /^(?:[\w/-]|[.:]\w)/;

interface Place {
  at: number;
  end: number;
  reference: ReferencePart;
}

/** Find references in a text, in order. Longer tokens match first, so that `@a:12` is not read as `@a:1` and "2". */
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

/** Return the references that still occur in the text. */
export function usedReferences(text: string, references: readonly ReferencePart[]): ReferencePart[] {
  if (references.length === 0) return [];
  const used = new Set(places(text, references).map((one) => one.reference));
  return references.filter((one) => used.has(one));
}

/** Split a text into text and reference parts for sending. Texts are trimmed as on the server; empty ones are omitted. */
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

/** Remove a reference from a text. */
export function withoutReference(text: string, reference: ReferencePart): string {
  let left = text;
  for (const { at, end } of places(text, [reference]).reverse())
    left = left.slice(0, at) + left.slice(end).replace(/^ /, "");
  return left;
}

/** Append a reference to lines with a comment, below the existing text. */
export function withRemark(text: string, reference: ReferencePart, remark: string): string {
  const before = text.trimEnd();
  return `${before}${before ? "\n" : ""}${tokenOf(reference)} ${remark}\n`;
}

/** Append a reference to a file, after the existing text. */
export function withMention(text: string, reference: ReferencePart): string {
  return `${text}${/\S$/.test(text) ? " " : ""}${tokenOf(reference)} `;
}

/** Return texts and references in order, with the whitespace that trimming removed. */
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

/** Return the partial path after an `@` at the caret and its position; null if there is none. */
export function mentionAt(text: string, caret: number): { at: number; query: string } | null {
  const found = /(?:^|\s)@([^\s@:]*)$/.exec(text.slice(0, caret));
  return found ? { at: caret - (found[1] ?? "").length - 1, query: found[1] ?? "" } : null;
}
