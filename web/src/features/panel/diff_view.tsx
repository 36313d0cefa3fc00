import { useVirtualizer } from "@tanstack/react-virtual";
import {
  type CSSProperties,
  type KeyboardEvent,
  type RefObject,
  useCallback,
  useEffect,
  useMemo,
  useRef,
  useState,
} from "react";
import { type DiffRow, diffRows, nextChange, placed, quoted, type Selection } from "@/chat/diff_rows";
import type { ReferencePart } from "@/chat/types";
import { CommentBox } from "@/features/panel/comment_box";
import type { CommentDraft } from "@/features/panel/comment_draft";
import { useLineColors } from "@/features/panel/diff_colors";
import { DiffLineRow, FileHead } from "@/features/panel/diff_line";
import { movedSelection, usePicking } from "@/features/panel/line_selection";
import type { DiffFile } from "@/lib/diff";
import { announce } from "@/ui/announcer";

const LINE_PX = 20;
const REMARK_PX = 24;
const FILE_PX = 36;
const COMMENT_PX = 110;

interface Props {
  label: string;
  files: readonly DiffFile[];
  split: boolean;
  wraps: boolean;
  viewed: (file: DiffFile) => boolean;
  onViewed: (file: DiffFile) => void;
  /** Called with a comment; null if the user may not comment. */
  onComment: ((reference: ReferencePart, text: string) => void) | null;
  /** The stored draft of the open comment. */
  remark: CommentDraft;
  /** Receives a function that scrolls to a file. */
  goTo: RefObject<((file: DiffFile) => void) | null>;
}

/** The diffs of several files. Only visible lines are mounted. */
export function DiffView({ label, files, split, wraps, viewed, onViewed, onComment, remark, goTo }: Props) {
  const [toggled, setToggled] = useState<ReadonlySet<string>>(new Set());
  const [selection, setSelection] = useState<Selection | null>(null);
  const [commenting, setCommenting] = useState<Selection | null>(null);
  // A restored comment box opens at its lines but does not take the focus.
  const [isFoundAgain, setFoundAgain] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const rows = useMemo(
    () => diffRows(files, { toggled, viewed, split, commenting }),
    [files, toggled, viewed, split, commenting],
  );
  const isMeasured = wraps || split;
  // Stable for the same rows: a new function would make the virtualizer measure all rows again.
  const getItemKey = useCallback((index: number) => rows[index]?.key ?? index, [rows]);
  const list = useVirtualizer({
    count: rows.length,
    getScrollElement: () => box.current,
    getItemKey,
    estimateSize: (index) => heightOf(rows[index]),
    overscan: 20,
  });
  // biome-ignore lint/correctness/useExhaustiveDependencies: the display mode changes the heights
  useEffect(() => list.measure(), [isMeasured, list.measure]);
  const width = useMemo(() => (isMeasured ? 0 : longest(rows)), [rows, isMeasured]);
  const items = list.getVirtualItems();
  const shownFiles = useFilesOf(rows, items[0]?.index ?? 0, items.at(-1)?.index ?? 0);
  const colors = useLineColors(shownFiles);

  const toggle = (file: DiffFile) =>
    setToggled((old) => {
      const next = new Set(old);
      if (!next.delete(file.key)) next.add(file.key);
      return next;
    });
  const mark = (file: DiffFile) => {
    setToggled((old) => new Set([...old].filter((key) => key !== file.key)));
    onViewed(file);
  };
  goTo.current = (file) => {
    const at = rows.findIndex((row) => row.kind === "file" && row.file.key === file.key);
    if (rows[at]?.kind === "file" && !rows[at].isOpen) toggle(file);
    if (at >= 0) list.scrollToIndex(at, { align: "start" });
  };
  const comment = (at: Selection | null) => {
    setFoundAgain(false);
    setCommenting(at);
  };
  const picking = usePicking(selection, setSelection, comment);
  const looked = useRef(false);
  useEffect(() => {
    if (looked.current || files.length === 0 || !onComment) return;
    looked.current = true;
    const kept = remark.load();
    const at = kept && placed(files, kept.reference);
    if (!at) return;
    setFoundAgain(true);
    setSelection(at);
    setCommenting(at);
  }, [files, onComment, remark]);
  const place = isFoundAgain ? rows.findIndex((row) => row.kind === "comment") : -1;
  // biome-ignore lint/correctness/useExhaustiveDependencies: runs once, when the row exists
  useEffect(() => {
    if (place >= 0) list.scrollToIndex(place, { align: "center" });
  }, [place >= 0]);

  function onKeyDown(event: KeyboardEvent) {
    if (event.target !== box.current || event.ctrlKey || event.metaKey || event.altKey) return;
    const top = rows.findIndex((_, index) => (list.measurementsCache[index]?.end ?? 0) > (list.scrollOffset ?? 0) + 1);
    if (event.key === "n" || event.key === "p") {
      const at = nextChange(rows, top, event.key === "n" ? 1 : -1);
      if (at !== null) list.scrollToIndex(at, { align: "start" });
    } else if (onComment && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      const moved = movedSelection(rows, selection, event.key === "ArrowDown" ? 1 : -1, event.shiftKey, top);
      if (!moved) return;
      setSelection(moved.selection);
      list.scrollToIndex(moved.row, { align: "auto" });
      announce(moved.words);
    } else if (onComment && selection && event.key === "Enter") {
      event.preventDefault();
      comment(selection);
    } else if (event.key === "Escape" && selection) {
      event.stopPropagation();
      setSelection(null);
    }
  }

  const end = () => {
    remark.keep(null);
    setCommenting(null);
    setSelection(null);
    box.current?.focus();
  };
  const current = topFile(rows, list.scrollOffset ?? 0, list.measurementsCache);
  const heads = (file: DiffFile, isOpen: boolean) => (
    <FileHead file={file} isOpen={isOpen} isViewed={viewed(file)} onToggle={toggle} onViewed={mark} />
  );
  return (
    <section
      ref={box}
      aria-label={label}
      tabIndex={0}
      onKeyDown={onKeyDown}
      className="min-h-0 flex-1 overflow-auto bg-bg1 [container-type:inline-size] [tab-size:4]"
      style={{ "--view": "100cqw" } as CSSProperties}
    >
      {current && <div className="sticky top-0 left-0 z-10 h-0">{heads(current.file, current.isOpen)}</div>}
      <div
        className="relative min-w-full font-mono text-code"
        style={{ height: list.getTotalSize(), ...(width ? { width: `calc(${width}ch + 8rem)` } : {}) }}
      >
        {items.map((item) => {
          const row = rows[item.index];
          if (!row) return null;
          const flexible = isMeasured || row.kind === "comment";
          return (
            <div
              key={item.key}
              data-index={item.index}
              ref={flexible ? list.measureElement : undefined}
              className="absolute inset-x-0"
              style={{ top: item.start, ...(flexible ? {} : { height: item.size }) }}
            >
              {row.kind === "file" ? (
                heads(row.file, row.isOpen)
              ) : row.kind === "comment" ? (
                commenting &&
                onComment && (
                  <CommentBox
                    about={aboutOf(quoted(row.file, commenting))}
                    initial={remark.load()?.text ?? ""}
                    takesFocus={!isFoundAgain}
                    onType={(text) => remark.keep({ reference: quoted(row.file, commenting), text })}
                    onCancel={end}
                    onAdd={(text) => {
                      onComment(quoted(row.file, commenting), text);
                      end();
                    }}
                  />
                )
              ) : (
                <DiffLineRow row={row} wraps={wraps || split} colors={colors} picking={onComment ? picking : null} />
              )}
            </div>
          );
        })}
      </div>
    </section>
  );
}

export function aboutOf({ file_name, start_line, end_line }: ReferencePart): string {
  return `${file_name}:${start_line}${end_line > start_line ? `-${end_line}` : ""}`;
}

function heightOf(row: DiffRow | undefined): number {
  if (row?.kind === "file") return FILE_PX;
  if (row?.kind === "remark") return REMARK_PX;
  return row?.kind === "comment" ? COMMENT_PX : LINE_PX;
}

/** Return the length of the longest line, which is the width of all lines. */
function longest(rows: readonly DiffRow[]): number {
  let most = 0;
  for (const row of rows) {
    if (row.kind !== "line" || row.line.text.length * 4 <= most) continue;
    const tabs = row.line.text.split("\t").length - 1;
    most = Math.max(most, row.line.text.length + 3 * tabs);
  }
  return most;
}

/** Return the file at the top of the view if its header row is scrolled out. */
function topFile(rows: readonly DiffRow[], offset: number, places: readonly { end: number }[]) {
  if (offset <= 0) return null;
  let low = 0;
  let high = rows.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((places[middle]?.end ?? 0) > offset) high = middle;
    else low = middle + 1;
  }
  const row = rows[low];
  if (!row) return null;
  return { file: row.file, isOpen: row.kind === "file" ? row.isOpen : true };
}

/** Return the files of the visible rows. The array is stable while the files are the same. */
function useFilesOf(rows: readonly DiffRow[], first: number, last: number): readonly DiffFile[] {
  const before = useRef<readonly DiffFile[]>([]);
  const files = [...new Set(rows.slice(first, last + 1).flatMap((row) => (row.kind === "file" ? [] : [row.file])))];
  const isSame = files.length === before.current.length && files.every((file, at) => file === before.current[at]);
  if (!isSame) before.current = files;
  return before.current;
}
