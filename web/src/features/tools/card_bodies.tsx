/** Shared components for the bodies of tool cards. */
import { Maximize2 } from "lucide-react";
import { Fragment, type ReactNode, useLayoutEffect, useMemo, useRef, useState } from "react";
import { CodeText, CopyButton, download } from "@/features/timeline/code_block";
import { ansiSpans } from "@/lib/ansi";
import { Button, IconButton } from "@/ui/button";
import { copyText } from "@/ui/clipboard";
import { cx } from "@/ui/cx";
import { Dialog } from "@/ui/dialog";

const MOST = 200 * 1024;
const ENDS = 64 * 1024;

/** Return the beginning and end of a text that is too long to show. */
export function ends(text: string): { head: string; tail: string | null } {
  if (text.length <= MOST) return { head: text, tail: null };
  return { head: text.slice(0, ENDS), tail: text.slice(-ENDS) };
}

interface BoxProps {
  children: ReactNode;
  label: string;
  copy?: string;
  className?: string;
  view?: View;
}

/** The part of long content that a box shows: its start, its end, or its end while it grows. */
export type View = "start" | "end" | "live";

/** Return which part of its output a call shows: the end while it runs and after it failed. */
export function outputView(runs: boolean, isFailed: boolean): View {
  if (runs) return "live";
  return isFailed ? "end" : "start";
}

const TALL_LINES = 12;
const TALL_CHARS = 1_200;

/** Return whether a text is longer than a box can show without scrolling. */
export function isLongBody(text: string): boolean {
  return text.length > TALL_CHARS || text.split("\n", TALL_LINES + 1).length > TALL_LINES;
}

/** A scrollable box of at most 16 rem. Longer content can be opened in a dialog. */
export function Box({ children, label, copy, className, view = "start" }: BoxProps) {
  const [isFull, setFull] = useState(false);
  const { box, isStartHidden, onScroll } = useEnd(view, copy);
  return (
    <div className="group/box relative">
      <div
        ref={box}
        onScroll={onScroll}
        tabIndex={0}
        role="group"
        aria-label={label}
        className={cx("max-h-64 overflow-auto rounded-md bg-bg2 px-3 py-2", className)}
      >
        {children}
      </div>
      {view === "end" && isStartHidden && (
        <Button
          size="small"
          className="mt-1"
          onClick={() => {
            box.current?.scrollTo({ top: 0 });
            box.current?.focus();
          }}
        >
          Show from start
        </Button>
      )}
      {copy !== undefined && (
        <span className="absolute top-1 right-1 flex rounded-md bg-bg1 opacity-0 group-focus-within/box:opacity-100 group-hover/box:opacity-100">
          {isLongBody(copy) && (
            <IconButton label={`Open ${label.toLowerCase()} in full`} size="small" onClick={() => setFull(true)}>
              <Maximize2 />
            </IconButton>
          )}
          <CopyButton text={copy} label={`Copy ${label.toLowerCase()}`} />
        </span>
      )}
      {copy !== undefined && isFull && (
        <Dialog
          open
          onOpenChange={setFull}
          title={label}
          wide
          footer={
            <>
              <Button onClick={() => download(copy, `${label.toLowerCase().replace(/\W+/g, "-")}.txt`)}>
                Download
              </Button>
              <Button onClick={() => void copyText(copy)}>Copy</Button>
            </>
          }
        >
          <div
            tabIndex={0}
            role="group"
            aria-label={label}
            className={cx("overflow-x-auto rounded-md bg-bg2 px-3 py-2", className)}
          >
            {children}
          </div>
        </Dialog>
      )}
    </div>
  );
}

/** The end counts as visible within this distance: about a line. */
const NEAR_END_PX = 24;

/** Keep the end of a box in view, if `view` says so, until the user scrolls up. */
function useEnd(view: View, content: string | undefined) {
  const box = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  const [isStartHidden, setStartHidden] = useState(false);
  const onScroll = () => {
    const element = box.current;
    if (!element || view === "start") return;
    isAtEnd.current = element.scrollHeight - element.scrollTop - element.clientHeight < NEAR_END_PX;
    setStartHidden(element.scrollTop > NEAR_END_PX);
  };
  // biome-ignore lint/correctness/useExhaustiveDependencies: content that grew has a new end
  useLayoutEffect(() => {
    const element = box.current;
    if (!element || view === "start" || !isAtEnd.current) return;
    element.scrollTop = element.scrollHeight;
    setStartHidden(element.scrollTop > NEAR_END_PX);
  }, [view, content]);
  return { box, isStartHidden, onScroll };
}

const COLORS = [
  "text-muted",
  "text-danger",
  "text-ok",
  "text-warn",
  "text-accent",
  "text-accent",
  "text-accent",
  "text-text",
];

/** The output of a command. */
export function Output({ text, label = "Output", view = "start" }: { text: string; label?: string; view?: View }) {
  const { head, tail } = ends(text);
  return (
    <Box label={label} copy={text} view={view}>
      <pre className="font-mono text-code break-words whitespace-pre-wrap">
        <Ansi text={head} />
        {tail !== null && (
          <>
            <span className="my-2 block text-muted">
              … {Math.round((text.length - 2 * ENDS) / 1024)} KiB left out …
            </span>
            <Ansi text={tail} />
          </>
        )}
      </pre>
      {tail !== null && (
        <Button size="small" onClick={() => download(text, "output.txt")}>
          Download all
        </Button>
      )}
    </Box>
  );
}

function Ansi({ text }: { text: string }) {
  const spans = useMemo(() => ansiSpans(text), [text]);
  return spans.map((span, index) =>
    span.color === null && !span.bold ? (
      <Fragment key={index}>{span.text}</Fragment>
    ) : (
      <span key={index} className={cx(span.color !== null && COLORS[span.color], span.bold && "font-semibold")}>
        {span.text}
      </span>
    ),
  );
}

/** Highlighted code in a box. */
export function Code({
  text,
  language,
  label,
  firstLine,
}: {
  text: string;
  language: string;
  label: string;
  firstLine?: number;
}) {
  const { head } = ends(text);
  return (
    <Box label={label} copy={text} {...(firstLine !== undefined ? { className: "px-0" } : {})}>
      <pre>
        <CodeText code={head} language={language} {...(firstLine !== undefined ? { firstLine } : {})} />
      </pre>
    </Box>
  );
}

/** A value as indented JSON. */
export function Json({ value, label }: { value: unknown; label: string }) {
  const shown = typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "");
  return <Code text={shown} language={typeof value === "string" ? "" : "json"} label={label} />;
}

interface Line {
  kind: "added" | "removed" | "same" | "head";
  text: string;
}

/** Return the lines of a unified diff without file headers. */
export function diffLines(diff: string): Line[] {
  return diff
    .replace(/\n$/, "")
    .split("\n")
    .filter((line) => !line.startsWith("--- ") && !line.startsWith("+++ "))
    .map((line): Line => {
      if (line.startsWith("@@")) return { kind: "head", text: line };
      if (line.startsWith("+")) return { kind: "added", text: line.slice(1) };
      if (line.startsWith("-")) return { kind: "removed", text: line.slice(1) };
      return { kind: "same", text: line.slice(1) };
    });
}

const MARKS: Record<Line["kind"], string> = { added: "+", removed: "-", same: " ", head: " " };

/** A unified diff, with signs and colors. */
export function Diff({ diff, label }: { diff: string; label: string }) {
  const lines = useMemo(() => diffLines(ends(diff).head), [diff]);
  return (
    <Box label={label} copy={diff} className="px-0">
      <pre className="w-fit min-w-full font-mono text-code">
        {lines.map((line, index) => (
          <span
            key={index}
            className={cx(
              "block px-3",
              line.kind === "added" && "bg-added",
              line.kind === "removed" && "bg-removed",
              line.kind === "head" && "bg-bg3 text-muted",
            )}
          >
            <span className="mr-2 text-muted select-none">{MARKS[line.kind]}</span>
            {line.text}
            {"\n"}
          </span>
        ))}
      </pre>
    </Box>
  );
}

/** A list of names and values. */
export function Facts({ facts }: { facts: [string, ReactNode][] }) {
  const shown = facts.filter(([, value]) => value !== null && value !== undefined && value !== "");
  if (shown.length === 0) return null;
  return (
    <dl className="grid grid-cols-[auto_1fr] gap-x-4 gap-y-1 text-small">
      {shown.map(([name, value]) => (
        <Fragment key={name}>
          <dt className="text-muted">{name}</dt>
          <dd className="min-w-0 break-words">{value}</dd>
        </Fragment>
      ))}
    </dl>
  );
}

/** A small table. */
export function Rows({ head, rows }: { head: string[]; rows: ReactNode[][] }) {
  return (
    <div className="max-h-64 overflow-auto rounded-md border border-line">
      <table className="w-full text-small">
        <thead className="sticky top-0 bg-bg2 text-left text-muted">
          <tr>
            {head.map((name) => (
              <th key={name} className="px-3 py-1.5 font-medium">
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, at) => (
            <tr key={at} className="border-t border-line">
              {row.map((cell, index) => (
                <td key={index} className="px-3 py-1.5 align-top break-words">
                  {cell}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** A note below a body. */
export function Note({ children, warn }: { children: ReactNode; warn?: boolean }) {
  return <p className={cx("text-small", warn ? "text-warn" : "text-muted")}>{children}</p>;
}
