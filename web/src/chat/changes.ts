/** What a chat has edited, file by file, from the results of its tools. Commands may have changed more. */
import { fields, list, text } from "@/chat/tools";
import type { Message } from "@/chat/types";

export interface ChangedFile {
  path: string;
  diffs: string[];
  added: number;
  removed: number;
}

export type ChangeLine =
  | { kind: "file"; file: ChangedFile; isOpen: boolean }
  | { kind: "head"; path: string; text: string }
  | { kind: "added" | "removed" | "same"; path: string; text: string; before: number | null; after: number | null };

// Above this many lines a file starts folded: few want to read it, and all have to pass it.
export const FOLD_LINES = 3_000;

/** Files in the order of their first edit. */
export function changedFiles(messages: Iterable<Message>): ChangedFile[] {
  const found = new Map<string, ChangedFile>();
  const calls = new Map<string, unknown>();
  for (const message of messages) {
    for (const part of message.content) {
      if (part.type === "tool-call") calls.set(part.tool_call_id, part.args);
      if (part.type !== "tool-result" || part.is_error) continue;
      const result = fields(part.result);
      if (part.tool_name === "edit_files") {
        for (const file of list(result.files)) note(found, text(file.path), text(file.diff));
      } else if (part.tool_name === "write_file") {
        const path = text(result.path) || text(fields(calls.get(part.tool_call_id)).path);
        note(found, path, text(result.diff));
      }
    }
  }
  return [...found.values()];
}

function note(found: Map<string, ChangedFile>, path: string, diff: string): void {
  if (!path || !diff) return;
  const file = found.get(path) ?? { path, diffs: [], added: 0, removed: 0 };
  file.diffs.push(diff);
  for (const line of body(diff)) {
    if (line.startsWith("+")) file.added += 1;
    else if (line.startsWith("-")) file.removed += 1;
  }
  found.set(path, file);
}

/** The lines of a unified diff behind the names of its files. */
function body(diff: string): string[] {
  const lines = diff.replace(/\n$/, "").split("\n");
  const first = lines.findIndex((line) => line.startsWith("@@"));
  return first < 0 ? lines.filter((line) => !/^(---|\+\+\+) /.test(line)) : lines.slice(first);
}

/** Everything as one list of rows, so that only those in view have to be there. */
export function changeLines(files: readonly ChangedFile[], toggled: ReadonlySet<string>): ChangeLine[] {
  return files.flatMap((file) => {
    const starts = file.added + file.removed <= FOLD_LINES;
    const isOpen = toggled.has(file.path) ? !starts : starts;
    const head: ChangeLine = { kind: "file", file, isOpen };
    return isOpen ? [head, ...file.diffs.flatMap((diff) => linesOf(file.path, diff))] : [head];
  });
}

function linesOf(path: string, diff: string): ChangeLine[] {
  let before = 1;
  let after = 1;
  return body(diff).map((line): ChangeLine => {
    const at = /^@@ -(\d+)(?:,\d+)? \+(\d+)/.exec(line);
    if (at) {
      before = Number(at[1]);
      after = Number(at[2]);
      return { kind: "head", path, text: line };
    }
    if (line.startsWith("+")) return { kind: "added", path, text: line.slice(1), before: null, after: after++ };
    if (line.startsWith("-")) return { kind: "removed", path, text: line.slice(1), before: before++, after: null };
    return { kind: "same", path, text: line.slice(1), before: before++, after: after++ };
  });
}
