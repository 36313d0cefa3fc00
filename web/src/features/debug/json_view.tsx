import { ChevronDown, ChevronRight, ChevronUp } from "lucide-react";
import { useEffect, useMemo, useRef, useState } from "react";
import { isMark } from "@/chat/debug_texts";
import { foldedAtFirst, type JsonLine, jsonLines, matchingLines, unfoldedTo, visibleLines } from "@/lib/json_lines";
import { Button, IconButton } from "@/ui/button";
import { cx } from "@/ui/cx";
import { Marked } from "./record_labels";

const LINES = 2_000;
const LONG_VALUE = 400;

/** A value as JSON that can be folded and searched. At most 2,000 lines are mounted at first. */
export function JsonView({ value, label }: { value: unknown; label: string }) {
  const lines = useMemo(() => jsonLines(value), [value]);
  const [folded, setFolded] = useState<ReadonlySet<number>>(() => foldedAtFirst(lines));
  const [most, setMost] = useState(LINES);
  const [query, setQuery] = useState("");
  const [at, setAt] = useState(0);
  const box = useRef<HTMLDivElement>(null);
  const wanted = query.trim();
  const hits = useMemo(() => matchingLines(lines, wanted), [lines, wanted]);
  const here = hits[at] ?? null;
  const shown = useMemo(() => visibleLines(lines, folded, most), [lines, folded, most]);
  useEffect(() => {
    if (here === null) return;
    setFolded((before) => unfoldedTo(lines, before, here));
    setMost((before) => Math.max(before, here + LINES));
  }, [here, lines]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: runs when the line of the match is mounted
  useEffect(() => {
    if (here !== null) box.current?.querySelector(`[data-line="${here}"]`)?.scrollIntoView({ block: "nearest" });
  }, [here, shown]);
  const toggle = (index: number) =>
    setFolded((before) => {
      const next = new Set(before);
      if (!next.delete(index)) next.add(index);
      return next;
    });
  const go = (by: 1 | -1) => hits.length > 0 && setAt((at + by + hits.length) % hits.length);
  return (
    <div className="rounded-md border border-line">
      {lines.length > 20 && (
        <div className="shows-focus flex h-8 items-center gap-1 border-b border-line px-1">
          <input
            aria-label={`Find in ${label}`}
            placeholder="Find"
            value={query}
            onChange={(event) => {
              setQuery(event.target.value);
              setAt(0);
            }}
            onKeyDown={(event) => {
              if (event.key === "Enter") go(event.shiftKey ? -1 : 1);
            }}
            className="min-w-0 flex-1 bg-transparent px-2 text-small outline-none placeholder:text-muted"
          />
          {wanted && (
            <output className="text-small text-muted tabular-nums">
              {hits.length === 0 ? "none" : `${at + 1}/${hits.length}`}
            </output>
          )}
          <IconButton label="Previous match" size="small" disabled={hits.length === 0} onClick={() => go(-1)}>
            <ChevronUp />
          </IconButton>
          <IconButton label="Next match" size="small" disabled={hits.length === 0} onClick={() => go(1)}>
            <ChevronDown />
          </IconButton>
        </div>
      )}
      <div
        ref={box}
        role="group"
        tabIndex={0}
        aria-label={label}
        className="max-h-[32rem] overflow-auto bg-bg2 py-1 font-mono text-small leading-6 -outline-offset-2"
      >
        {shown.map((index) => {
          const line = lines[index];
          return (
            line && (
              <Line
                key={index}
                line={line}
                index={index}
                isFolded={folded.has(index)}
                onToggle={toggle}
                wanted={wanted}
                isHere={index === here}
              />
            )
          );
        })}
        {shown.length === most && (
          <Button size="small" className="mx-2 my-1" onClick={() => setMost(most + LINES)}>
            Show more lines
          </Button>
        )}
      </div>
    </div>
  );
}

const KINDS: Record<JsonLine["kind"], string> = {
  string: "text-(--code-token-string)",
  number: "text-(--code-token-constant)",
  word: "text-(--code-token-keyword)",
  open: "",
  close: "",
};

interface LineProps {
  line: JsonLine;
  index: number;
  isFolded: boolean;
  onToggle: (index: number) => void;
  wanted: string;
  isHere: boolean;
}

function Line({ line, index, isFolded, onToggle, wanted, isHere }: LineProps) {
  const comma = line.isLast || (line.kind === "open" && !isFolded) ? "" : ",";
  const key = line.key !== null && (
    <>
      <span className="text-(--code-token-function)">
        "<Marked text={line.key} wanted={wanted} />"
      </span>
      {": "}
    </>
  );
  const look = cx("flex w-full items-start pr-2 text-left", isHere && "bg-mark");
  const indent = { paddingLeft: 4 + line.depth * 12 };
  if (line.kind === "open") {
    const closing = line.text === "[" ? "]" : "}";
    return (
      <button
        type="button"
        data-line={index}
        aria-expanded={!isFolded}
        onClick={() => onToggle(index)}
        className={cx(look, "hover:bg-bg3")}
        style={indent}
      >
        <ChevronRight aria-hidden className={cx("mt-1.5 size-3 shrink-0 text-muted", !isFolded && "rotate-90")} />
        <span className="min-w-0 pl-1">
          {key}
          {line.text}
          {isFolded && (
            <>
              <span className="text-muted">
                {" "}
                {line.size} {nounOf(line)}{" "}
              </span>
              {closing}
              {comma}
            </>
          )}
        </span>
      </button>
    );
  }
  return (
    <div data-line={index} className={look} style={indent}>
      <span className="min-w-0 pl-4">
        {key}
        <Value line={line} wanted={wanted} />
        {comma}
      </span>
    </div>
  );
}

function nounOf(line: JsonLine): string {
  if (line.text === "[") return line.size === 1 ? "item" : "items";
  return line.size === 1 ? "field" : "fields";
}

function Value({ line, wanted }: { line: JsonLine; wanted: string }) {
  const [isWhole, setWhole] = useState(false);
  const isLong = line.text.length > LONG_VALUE;
  const isHit = wanted !== "" && line.text.toLowerCase().includes(wanted.toLowerCase());
  const isOpen = !isLong || isWhole || isHit;
  if (line.kind === "string" && isMark(line.text.slice(1, -1))) {
    return (
      <span className="text-warn">
        <Marked text={line.text} wanted={wanted} />
      </span>
    );
  }
  return (
    <>
      <span className={cx("break-words whitespace-pre-wrap", KINDS[line.kind])}>
        <Marked text={isOpen ? line.text : `${line.text.slice(0, LONG_VALUE)}…"`} wanted={wanted} />
      </span>
      {!isOpen && (
        <button type="button" className="ml-1 text-accent underline" onClick={() => setWhole(true)}>
          {(line.text.length - LONG_VALUE).toLocaleString("en")} more characters
        </button>
      )}
    </>
  );
}
