/** Selection of lines in a diff: with the pointer on the line numbers, or with Shift and the arrow keys. */
import { useEffect, useMemo, useRef } from "react";
import { type DiffRow, isSelected, placesOf, type Selection } from "@/chat/diff_rows";
import type { Picking } from "@/features/panel/diff_line";
import type { DiffFile } from "@/lib/diff";

type Set = (selection: Selection | null) => void;

export function usePicking(selection: Selection | null, select: Set, comment: Set): Picking {
  const held = useRef<Selection | null>(null);
  const latest = useRef(comment);
  latest.current = comment;
  useEffect(() => {
    // Listens on the window, because the button may be released anywhere.
    function onUp() {
      if (held.current) latest.current(held.current);
      held.current = null;
    }
    window.addEventListener("pointerup", onUp);
    return () => window.removeEventListener("pointerup", onUp);
  }, []);
  // Stable while the selection is the same, so that lines do not render again.
  return useMemo(
    () => ({
      isSelected: (file, at) => isSelected(selection, file.key, at),
      begin: (file, at, event) => {
        if (event.button !== 0) return;
        event.preventDefault();
        const extends_ = event.shiftKey && selection?.key === file.key;
        held.current = { key: file.key, anchor: extends_ ? selection.anchor : at, head: at };
        select(held.current);
      },
      extend: (file, at) => {
        if (held.current?.key !== file.key) return;
        held.current = { ...held.current, head: at };
        select(held.current);
      },
      comment: (file, at) => {
        const inside =
          isSelected(selection, file.key, at) && selection ? selection : { key: file.key, anchor: at, head: at };
        select(inside);
        latest.current(inside);
      },
    }),
    [selection, select],
  );
}

interface Moved {
  selection: Selection;
  row: number;
  /** The announcement for screen readers. */
  words: string;
}

/** Return the selection after an arrow key: the next line, or with Shift one more line. Null at the end. */
export function movedSelection(
  rows: readonly DiffRow[],
  selection: Selection | null,
  by: 1 | -1,
  extend: boolean,
  top: number,
): Moved | null {
  const from = selection ? rows.findIndex((row) => isAt(row, selection)) : top - by;
  for (let at = from + by; at >= 0 && at < rows.length; at += by) {
    const row = rows[at];
    const place = row ? placesOf(row).at(-1) : undefined;
    if (!row || place === undefined) continue;
    if (extend && selection && row.file.key !== selection.key) return null;
    const anchor = extend && selection ? selection.anchor : place;
    return { selection: { key: row.file.key, anchor, head: place }, row: at, words: words(row.file, place) };
  }
  return null;
}

function isAt(row: DiffRow, { key, head }: Selection): boolean {
  return row.file.key === key && placesOf(row).includes(head);
}

function words(file: DiffFile, place: number): string {
  const line = file.lines[place];
  if (!line) return "";
  const kind = line.kind === "same" ? "" : `${line.kind}, `;
  return `${kind}line ${line.after ?? line.before}: ${line.text.trim() || "blank"}`;
}
