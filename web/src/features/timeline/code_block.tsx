import { Check, Copy, Download, WrapText } from "lucide-react";
import { memo, type RefObject, useEffect, useRef, useState } from "react";
import { cachedLines, highlight, type Lines } from "@/features/timeline/highlighter";
import { IconButton } from "@/ui/button";
import { copyText } from "@/ui/clipboard";
import { cx } from "@/ui/cx";

const FOLD_ABOVE = 200;
const FOLDED = 40;

interface CodeTextProps {
  code: string;
  language: string;
  /** Whether the code is still arriving. New lines are plain until they are highlighted. */
  live?: boolean;
  firstLine?: number;
}

/** Highlighted code. While it grows, highlighted lines stay and only new lines are plain, so that nothing flickers. */
export const CodeText = memo(function CodeText({ code, language, live, firstLine }: CodeTextProps) {
  const [colored, setColored] = useState<{ code: string; lines: Lines } | null>(() => {
    const lines = cachedLines(code, language);
    return lines ? { code, lines } : null;
  });
  const asked = useRef(0);
  useEffect(() => {
    let gone = false;
    const since = performance.now() - asked.current;
    // While the code grows, it is highlighted at most three times a second.
    const wait = live ? Math.max(0, 330 - since) : 0;
    const timer = setTimeout(() => {
      asked.current = performance.now();
      void highlight(code, language).then((lines) => {
        if (!gone && lines) setColored({ code, lines });
      });
    }, wait);
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [code, language, live]);

  const source = code.split("\n");
  const usable = colored && (colored.code === code || code.startsWith(colored.code));
  // The last highlighted line may have grown since.
  const whole = usable ? (colored.code === code ? colored.lines.length : colored.lines.length - 1) : 0;
  return (
    <code className="block w-fit min-w-full font-mono text-code">
      {source.map((line, index) => (
        <CodeLine
          key={index}
          text={line}
          tokens={index < whole ? (colored?.lines[index] ?? null) : null}
          number={firstLine === undefined ? null : firstLine + index}
        />
      ))}
    </code>
  );
});

interface CodeLineProps {
  text: string;
  tokens: Lines[number] | null;
  number: number | null;
}

/** One line of code. Memoized: existing lines do not render again while others arrive. */
const CodeLine = memo(function CodeLine({ text, tokens, number }: CodeLineProps) {
  return (
    <span className={cx("block", number !== null && "flex")}>
      {number !== null && (
        <span aria-hidden className="w-12 shrink-0 pr-4 text-right text-muted select-none">
          {number}
        </span>
      )}
      <span className="min-w-0">
        {tokens
          ? tokens.map(([part, color], at) => (
              <span key={at} style={color ? { color } : undefined}>
                {part}
              </span>
            ))
          : text}
        {"\n"}
      </span>
    </span>
  );
});

interface CodeBlockProps {
  code: string;
  language: string;
  live?: boolean;
}

/** A code block of an answer, with its language and buttons to wrap, copy and download. */
export const CodeBlock = memo(function CodeBlock({ code, language, live }: CodeBlockProps) {
  const [wraps, setWraps] = useState(false);
  const [open, setOpen] = useState(false);
  const latest = useRef(code);
  latest.current = code;
  const lines = code.split("\n").length;
  const folded = !open && !live && lines > FOLD_ABOVE;
  const shown = folded ? code.split("\n").slice(0, FOLDED).join("\n") : code;
  return (
    <div className="my-3 overflow-hidden rounded-lg border border-line bg-bg2">
      <CodeHead language={language} wraps={wraps} onWrap={setWraps} source={latest} />
      <pre tabIndex={0} className={cx("overflow-x-auto px-3 py-2", wraps && "break-words whitespace-pre-wrap")}>
        <CodeText code={shown} language={language} {...(live ? { live } : {})} />
      </pre>
      {folded && (
        <button
          type="button"
          className="w-full border-t border-line py-1 text-small text-muted hover:bg-bg3"
          onClick={() => setOpen(true)}
        >
          Show all {lines} lines
        </button>
      )}
    </div>
  );
});

interface CodeHeadProps {
  language: string;
  wraps: boolean;
  onWrap: (wraps: boolean) => void;
  source: RefObject<string>;
}

/** The header of a code block. It renders once; the code is read when a button is pressed. */
const CodeHead = memo(function CodeHead({ language, wraps, onWrap, source }: CodeHeadProps) {
  return (
    <div className="flex h-8 items-center gap-1 border-b border-line pr-1 pl-3 text-small text-muted">
      <span className="min-w-0 flex-1 truncate">{language || "text"}</span>
      <IconButton label={wraps ? "Do not wrap lines" : "Wrap lines"} size="small" onClick={() => onWrap(!wraps)}>
        <WrapText />
      </IconButton>
      <IconButton
        label="Download code"
        size="small"
        onClick={() => download(source.current, `code.${language || "txt"}`)}
      >
        <Download />
      </IconButton>
      <CopyButton text={() => source.current} label="Copy code" />
    </div>
  );
});

/** A copy button that confirms for a moment. */
export function CopyButton({
  text,
  label,
  className,
}: {
  text: string | (() => string);
  label: string;
  className?: string;
}) {
  const [done, setDone] = useState(false);
  useEffect(() => {
    if (!done) return;
    const timer = setTimeout(() => setDone(false), 1500);
    return () => clearTimeout(timer);
  }, [done]);
  return (
    <IconButton
      label={done ? "Copied" : label}
      size="small"
      {...(className ? { className } : {})}
      onClick={() => {
        void copyText(typeof text === "string" ? text : text()).then(setDone);
      }}
    >
      {done ? <Check className="text-ok" /> : <Copy />}
    </IconButton>
  );
}

/** Save a text as a file. */
export function download(content: string, name: string, type = "text/plain"): void {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
