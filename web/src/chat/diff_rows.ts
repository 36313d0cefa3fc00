/** Diffs as one flat list of rows, so that only the visible rows are mounted. */

import type { ReferencePart } from "@/chat/types";
import type { DiffFile, DiffLine } from "@/lib/diff";

export type DiffRow =
  | { kind: "file"; key: string; file: DiffFile; isOpen: boolean }
  | { kind: "remark"; key: string; file: DiffFile; text: string }
  | { kind: "line"; key: string; file: DiffFile; line: DiffLine; at: number }
  | { kind: "pair"; key: string; file: DiffFile; left: Side | null; right: Side | null }
  | { kind: "comment"; key: string; file: DiffFile };

export interface Side {
  line: DiffLine;
  /** The index of the line in its file. */
  at: number;
}

/** Selected lines, from the first to the last index, inclusive. */
export interface Selection {
  key: string;
  anchor: number;
  head: number;
}

// Files with more lines are collapsed at first.
export const FOLD_LINES = 3_000;

interface Shown {
  /** Files that the user expanded or collapsed. */
  toggled: ReadonlySet<string>;
  viewed: (file: DiffFile) => boolean;
  split: boolean;
  /** The lines to which the open comment box belongs. */
  commenting: Selection | null;
}

export function diffRows(files: readonly DiffFile[], shown: Shown): DiffRow[] {
  return files.flatMap((file) => {
    const starts = file.added + file.removed <= FOLD_LINES && !shown.viewed(file);
    const isOpen = shown.toggled.has(file.key) ? !starts : starts;
    const head: DiffRow = { kind: "file", key: file.key, file, isOpen };
    if (!isOpen) return [head];
    const remarks = file.remarks.map(
      (text, at): DiffRow => ({ kind: "remark", key: `${file.key}\0r${at}`, file, text }),
    );
    const lines = shown.split ? pairs(file) : file.lines.map((line, at) => lineRow(file, line, at));
    return [head, ...remarks, ...withComment(file, lines, shown.commenting)];
  });
}

function lineRow(file: DiffFile, line: DiffLine, at: number): DiffRow {
  return { kind: "line", key: `${file.key}\0${at}`, file, line, at };
}

/** Return rows with old lines on the left and the new lines that replace them on the right. */
function pairs(file: DiffFile): DiffRow[] {
  const rows: DiffRow[] = [];
  let left: Side[] = [];
  let right: Side[] = [];
  const flush = () => {
    for (let at = 0; at < Math.max(left.length, right.length); at += 1) {
      const one = left[at] ?? null;
      const other = right[at] ?? null;
      rows.push({
        kind: "pair",
        key: `${file.key}\0${one?.at ?? ""}|${other?.at ?? ""}`,
        file,
        left: one,
        right: other,
      });
    }
    left = [];
    right = [];
  };
  for (const [at, line] of file.lines.entries()) {
    if (line.kind === "removed") {
      if (right.length > 0) flush();
      left.push({ line, at });
    } else if (line.kind === "added") right.push({ line, at });
    else {
      flush();
      if (line.kind !== "same") rows.push(lineRow(file, line, at));
      else rows.push({ kind: "pair", key: `${file.key}\0${at}`, file, left: { line, at }, right: { line, at } });
    }
  }
  flush();
  return rows;
}

function withComment(file: DiffFile, rows: DiffRow[], at: Selection | null): DiffRow[] {
  if (at?.key !== file.key) return rows;
  const last = Math.max(at.anchor, at.head);
  const index = rows.findIndex((row) => placesOf(row).includes(last));
  if (index < 0) return rows;
  return rows.toSpliced(index + 1, 0, { kind: "comment", key: `${file.key}\0comment`, file });
}

/** Return the indexes of the lines that a row shows. */
export function placesOf(row: DiffRow): number[] {
  if (row.kind === "line") return row.line.kind === "head" || row.line.kind === "note" ? [] : [row.at];
  if (row.kind !== "pair") return [];
  return [row.left, row.right].flatMap((side) => (side ? [side.at] : []));
}

export function isSelected(selection: Selection | null, key: string, at: number): boolean {
  if (selection?.key !== key) return false;
  return at >= Math.min(selection.anchor, selection.head) && at <= Math.max(selection.anchor, selection.head);
}

/** Return the quoted lines of a selection. Only the side on which it ends is quoted, so that line numbers are consistent. */
export function quoted(file: DiffFile, selection: Selection) {
  const from = Math.min(selection.anchor, selection.head);
  const to = Math.max(selection.anchor, selection.head);
  const isOld = file.lines[to]?.kind === "removed";
  const lines = file.lines.slice(from, to + 1).filter((line) => (isOld ? line.before : line.after) !== null);
  const numbers = lines.flatMap((line) => (isOld ? line.before : line.after) ?? []);
  return {
    type: "file-reference" as const,
    file_name: file.path,
    start_line: numbers[0] ?? 0,
    end_line: numbers.at(-1) ?? 0,
    content: lines.map((line) => line.text).join("\n"),
  };
}

/** Find quoted lines in the current diff: by number and text, else by number. Null if the lines no longer exist. */
export function placed(files: readonly DiffFile[], quote: ReferencePart): Selection | null {
  let near: Selection | null = null;
  for (const file of files) {
    if (file.path !== quote.file_name) continue;
    for (const side of ["after", "before"] as const) {
      const places = file.lines.flatMap((line, at) => {
        const number = line[side];
        return number !== null && number >= quote.start_line && number <= quote.end_line ? [at] : [];
      });
      const [anchor, head] = [places[0], places.at(-1)];
      if (anchor === undefined || head === undefined) continue;
      const selection = { key: file.key, anchor, head };
      if (quoted(file, selection).content === quote.content) return selection;
      near ??= selection;
    }
  }
  return near;
}

/** Return the row of the next or previous hunk, starting from a row. */
export function nextChange(rows: readonly DiffRow[], from: number, by: 1 | -1): number | null {
  for (let at = from + by; at >= 0 && at < rows.length; at += by) {
    const row = rows[at];
    if (row?.kind === "line" && row.line.kind === "head") return at;
    // A collapsed, binary or renamed file has no lines; its header row is the target.
    if (row?.kind === "file" && (!row.isOpen || row.file.lines.length === 0)) return at;
  }
  return null;
}

/** Return a key of the file's content. A "viewed" mark is removed when it changes. */
export function signature(file: DiffFile): string {
  let hash = 0;
  for (const line of file.lines) {
    if (line.kind === "same") continue;
    for (let at = 0; at < line.text.length; at += 1) hash = (hash * 31 + line.text.charCodeAt(at)) | 0;
    hash = (hash * 31 + line.kind.length) | 0;
  }
  return `${file.added}/${file.removed}/${hash}`;
}

export type TreeRow =
  | { kind: "folder"; key: string; name: string; depth: number }
  | { kind: "file"; key: string; name: string; depth: number; file: DiffFile };

/** Return the files as a tree of rows. A folder that contains only one folder shares a row with it. */
export function fileTree(files: readonly DiffFile[]): TreeRow[] {
  const rows: TreeRow[] = [];
  let open: string[] = [];
  for (const file of [...files].sort((a, b) => (a.path < b.path ? -1 : 1))) {
    const cut = file.path.lastIndexOf("/");
    const folder = cut < 0 ? "" : file.path.slice(0, cut);
    while (open.length > 0 && folder !== open.at(-1) && !folder.startsWith(`${open.at(-1)}/`)) open = open.slice(0, -1);
    const parent = open.at(-1) ?? "";
    if (folder !== parent) {
      const name = parent ? folder.slice(parent.length + 1) : folder;
      rows.push({ kind: "folder", key: `${file.key}\0folder`, name, depth: open.length });
      open = [...open, folder];
    }
    rows.push({ kind: "file", key: file.key, name: file.path.slice(cut + 1), depth: open.length, file });
  }
  return rows;
}
