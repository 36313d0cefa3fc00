import { ChevronDown, ChevronRight, Copy, MessageSquarePlus } from "lucide-react";
import { memo, type PointerEvent, type ReactNode, useId, useState } from "react";
import type { DiffRow, Side } from "@/chat/diff_rows";
import type { Colors } from "@/features/panel/diff_colors";
import type { DiffFile, DiffLine } from "@/lib/diff";
import { IconButton } from "@/ui/button";
import { copyText } from "@/ui/clipboard";
import { cx } from "@/ui/cx";

const SIGNS = { added: "+", removed: "-", same: " ", head: " ", note: " " } as const;

/** The selection of lines for a comment; null if the user may not comment. */
export interface Picking {
  isSelected: (file: DiffFile, at: number) => boolean;
  begin: (file: DiffFile, at: number, event: PointerEvent) => void;
  extend: (file: DiffFile, at: number) => void;
  comment: (file: DiffFile, at: number) => void;
}

interface Props {
  row: Exclude<DiffRow, { kind: "file" | "comment" }>;
  wraps: boolean;
  colors: Colors;
  picking: Picking | null;
}

/** One line of a diff, or two side by side. Memoized: visible lines do not render again while the user scrolls. */
export const DiffLineRow = memo(function DiffLineRow({ row, wraps, colors, picking }: Props) {
  if (row.kind === "remark") {
    return <p className="h-6 px-3 font-sans text-small leading-6 text-muted">{row.text}</p>;
  }
  if (row.kind === "pair") {
    return (
      <div className="grid grid-cols-2 divide-x divide-line">
        <Half file={row.file} side={row.left} isOld colors={colors} picking={picking} />
        <Half file={row.file} side={row.right} isOld={false} colors={colors} picking={picking} />
      </div>
    );
  }
  const { line, file, at } = row;
  if (line.kind === "head" || line.kind === "note") {
    return (
      <div className={cx("h-5 truncate px-3 text-small leading-5 text-muted", line.kind === "head" && "bg-bg3")}>
        {line.text}
      </div>
    );
  }
  return (
    <Line file={file} line={line} at={at} wraps={wraps} picking={picking} spans={colors(file, line)}>
      <LineNumber value={line.before} />
      <LineNumber value={line.after} />
    </Line>
  );
});

function Half({
  file,
  side,
  isOld,
  colors,
  picking,
}: {
  file: DiffFile;
  side: Side | null;
  isOld: boolean;
  colors: Colors;
  picking: Picking | null;
}) {
  if (!side) return <div className="min-h-5 bg-bg2" />;
  const { line, at } = side;
  return (
    <Line file={file} line={line} at={at} wraps picking={picking} spans={colors(file, line)}>
      <LineNumber value={isOld ? line.before : line.after} />
    </Line>
  );
}

const LineNumber = ({ value }: { value: number | null }) => (
  <span className="w-10 shrink-0 pr-2 text-right">{value}</span>
);

interface LineProps {
  file: DiffFile;
  line: DiffLine;
  at: number;
  wraps: boolean;
  spans: ReturnType<Colors>;
  picking: Picking | null;
  children: ReactNode;
}

function Line({ file, line, at, wraps, spans, picking, children }: LineProps) {
  const [isUnder, setUnder] = useState(false);
  return (
    <div
      className={cx(
        "relative flex min-h-5 leading-5",
        wraps ? "min-w-0 [overflow-wrap:anywhere] whitespace-pre-wrap" : "whitespace-pre",
        line.kind === "added" && "bg-added",
        line.kind === "removed" && "bg-removed",
        picking?.isSelected(file, at) && "shadow-[inset_3px_0_0_var(--accent-color)] bg-mark!",
      )}
      onPointerEnter={
        picking
          ? () => {
              setUnder(true);
              picking.extend(file, at);
            }
          : undefined
      }
      onPointerLeave={picking ? () => setUnder(false) : undefined}
    >
      <span
        className={cx("flex shrink-0 text-muted select-none", picking && "cursor-pointer")}
        onPointerDown={picking ? (event) => picking.begin(file, at, event) : undefined}
      >
        {children}
      </span>
      {picking && isUnder && (
        <button
          type="button"
          tabIndex={-1}
          aria-label={`Comment on line ${line.after ?? line.before}`}
          onClick={() => picking.comment(file, at)}
          className="absolute left-0.5 grid size-5 place-items-center rounded bg-accent text-on-accent [&_svg]:size-3.5"
        >
          <MessageSquarePlus aria-hidden />
        </button>
      )}
      <span className="w-4 shrink-0 select-none">{SIGNS[line.kind]}</span>
      <span className="min-w-0 pr-4">
        {spans
          ? spans.map(([text, color], index) => (
              <span key={index} style={color ? { color } : undefined}>
                {text}
              </span>
            ))
          : line.text}
      </span>
    </div>
  );
}

interface HeadProps {
  file: DiffFile;
  isOpen: boolean;
  isViewed: boolean;
  onToggle: (file: DiffFile) => void;
  onViewed: (file: DiffFile) => void;
}

/** The header row of a file. */
export function FileHead({ file, isOpen, isViewed, onToggle, onViewed }: HeadProps) {
  const id = useId();
  const Icon = isOpen ? ChevronDown : ChevronRight;
  const cut = file.path.lastIndexOf("/") + 1;
  return (
    <div className="sticky left-0 flex h-9 w-(--view) items-center gap-1 border-y border-line bg-bg2 px-2 font-sans text-ui">
      <button
        type="button"
        aria-expanded={isOpen}
        onClick={() => onToggle(file)}
        className="flex min-w-0 flex-1 items-center gap-1.5 rounded-md text-left"
      >
        <Icon className="size-4 shrink-0 text-muted" aria-hidden />
        <span className={cx("flex min-w-0 font-mono text-code", isViewed && "text-muted")} title={file.path}>
          <span className="min-w-0 truncate text-muted">{file.path.slice(0, cut)}</span>
          <span className="shrink-0">{file.path.slice(cut)}</span>
        </span>
        <Counts added={file.added} removed={file.removed} />
      </button>
      <label htmlFor={id} className="flex shrink-0 cursor-pointer items-center gap-1 text-small text-muted">
        <input
          id={id}
          type="checkbox"
          checked={isViewed}
          onChange={() => onViewed(file)}
          aria-label={`Viewed ${file.path}`}
          className="size-4 accent-(--accent-color)"
        />
        Viewed
      </label>
      <IconButton
        label={`Copy path ${file.path}`}
        size="small"
        onClick={() => void copyText(file.path, "The path is on the clipboard.")}
      >
        <Copy />
      </IconButton>
    </div>
  );
}

/** The numbers of added and removed lines. */
export function Counts({ added, removed }: { added: number; removed: number }) {
  return (
    <span className="shrink-0 text-small tabular-nums">
      <span className="text-ok">+{added}</span> <span className="text-danger">-{removed}</span>
    </span>
  );
}
