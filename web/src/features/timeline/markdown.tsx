import { Copy, ImageIcon } from "lucide-react";
import {
  createContext,
  createElement,
  memo,
  type ReactNode,
  type RefObject,
  Suspense,
  use,
  useId,
  useMemo,
  useRef,
  useState,
} from "react";
import {
  completed,
  type DetailsToken,
  type FootnoteToken,
  headOf,
  hostOf,
  isMisleading,
  type Lexed,
  lex,
  lexTail,
  NOTHING,
  safeHref,
  type Token,
  type Tokens,
} from "@/chat/markdown";
import { languageOf } from "@/features/timeline/highlighter";
import { InlineCode, InsideLink } from "@/features/timeline/path_link";
import { Button } from "@/ui/button";
import { copyText } from "@/ui/clipboard";
import { Confirm } from "@/ui/dialog";
import { lazyPart } from "@/ui/lazy_part";
import { AGAIN_MS, MenuAt, placeOf } from "@/ui/menu";
import { CodeBlock, download } from "./code_block";
import { sizeOf } from "./message_files";

const Formula = lazyPart(async () => (await import("@/features/timeline/formula")).Formula);
const Diagram = lazyPart(async () => (await import("@/features/timeline/diagram")).Diagram);

// Chosen: about a chapter of a book. Rendering megabytes at once would block the browser.
const WHOLE_UP_TO = 200_000;
const STEP = 100_000;

/** Renders Markdown as React elements. HTML in the source is shown as text, except for `<details>` and `<br>`. */
export const Markdown = memo(function Markdown({ text }: { text: string }) {
  const [length, setLength] = useState(STEP);
  const shown = text.length > WHOLE_UP_TO ? headOf(text, length) : text;
  const tokens = useMemo(() => lex(shown), [shown]);
  return (
    <Footnotes tokens={tokens}>
      <Blocks tokens={tokens} />
      {shown.length < text.length && (
        <Rest left={text.length - shown.length} onMore={() => setLength(length + STEP)} whole={text} />
      )}
    </Footnotes>
  );
});

/** The footnotes of a text by label, in the order of the list at its end. `null` while the text arrives. */
const Notes = createContext<{ id: string; labels: readonly string[] } | null>(null);

function Footnotes({ tokens, children }: { tokens: readonly Token[]; children: ReactNode }) {
  const id = useId();
  const notes = useMemo(() => {
    const found = new Map<string, FootnoteToken>();
    for (const token of tokens as readonly (Token | FootnoteToken)[])
      if (token.type === "footnote" && !found.has((token as FootnoteToken).label))
        found.set((token as FootnoteToken).label, token as FootnoteToken);
    return found;
  }, [tokens]);
  const value = useMemo(() => ({ id, labels: [...notes.keys()] }), [id, notes]);
  return (
    <Notes value={value}>
      {children}
      {notes.size > 0 && (
        <ol
          className="prose-flow mt-4 list-decimal border-t border-line pt-3 pl-6 text-ui text-muted"
          role="doc-endnotes"
        >
          {[...notes.values()].map((note, index) => (
            <li key={note.label} id={`${id}note-${index}`} tabIndex={-1} className="my-1">
              <div className="inline [&_.prose-flow]:inline [&_.prose-flow>p:last-child]:inline">
                <Blocks tokens={note.tokens ?? []} />
              </div>{" "}
              <button
                type="button"
                className="text-accent"
                aria-label={`Back to reference ${index + 1}`}
                onClick={() => focusOn(`${id}ref-${index}`)}
              >
                ↩
              </button>
            </li>
          ))}
        </ol>
      )}
    </Notes>
  );
}

/** A reference to a footnote. Without such a footnote it is shown as text. */
function FootnoteReference({ token }: { token: FootnoteToken }) {
  const notes = use(Notes);
  const at = notes?.labels.indexOf(token.label) ?? -1;
  if (at < 0) return notes ? token.raw : <sup>{token.label}</sup>;
  return (
    <sup>
      <button
        type="button"
        id={`${notes?.id}ref-${at}`}
        className="px-0.5 text-accent underline-offset-2 hover:underline"
        aria-label={`Footnote ${at + 1}`}
        onClick={() => focusOn(`${notes?.id}note-${at}`)}
      >
        {at + 1}
      </button>
    </sup>
  );
}

function focusOn(id: string): void {
  const element = document.getElementById(id);
  element?.scrollIntoView({ block: "nearest" });
  element?.focus({ preventScroll: true });
}

/** Markdown that is still arriving. Only its tail is parsed and rendered again. */
export const LiveMarkdown = memo(function LiveMarkdown({ text }: { text: string }) {
  const before = useRef<Lexed>(NOTHING);
  before.current = lexTail(before.current, text);
  const shown = completed(before.current).filter((token) => isShown(token) || token.type === "footnote");
  const portions = Math.ceil(shown.length / PORTION);
  return (
    <div className="prose-flow">
      {Array.from({ length: portions }, (_, index) => (
        <Portion
          key={index}
          tokens={shown.slice(index * PORTION, (index + 1) * PORTION)}
          live={index === portions - 1}
        />
      ))}
    </div>
  );
});

const PORTION = 12;

/**
 * A portion of the blocks of an arriving answer. Only the last portion changes, so the cost does not grow with the
 * answer. Each portion is a stacking context, so that the browser does not repaint the others.
 */
const Portion = memo(
  function Portion({ tokens, live }: { tokens: readonly Token[]; live: boolean }) {
    return (
      <div className="portion">
        {tokens.map((token, index) => (
          <Block key={index} raw={token.raw} token={token} live={live && index === tokens.length - 1} />
        ))}
      </div>
    );
  },
  (before, after) =>
    before.live === after.live &&
    before.tokens.length === after.tokens.length &&
    before.tokens.every((token, at) => token === after.tokens[at]),
);

/** The button to show the rest of a text that is too long to render at once. */
export function Rest({ left, onMore, whole }: { left: number; onMore: () => void; whole: string }) {
  return (
    <p className="mt-3 flex flex-wrap items-center gap-2 text-small text-muted">
      {sizeOf(left)} more.
      <Button size="small" onClick={onMore}>
        Show more
      </Button>
      <Button size="small" onClick={() => download(whole, "message.md")}>
        Download all
      </Button>
    </p>
  );
}

// Footnotes are listed at the end of the text.
const isShown = (token: Token) => token.type !== "space" && token.type !== "def" && token.type !== "footnote";

function Blocks({ tokens }: { tokens: readonly Token[] }) {
  return (
    <div className="prose-flow">
      {tokens.filter(isShown).map((token, index) => (
        <Block key={index} raw={token.raw} token={token} live={false} />
      ))}
    </div>
  );
}

/** One block. Memoized by its text. */
const Block = memo(
  function Block({ token, live }: { raw: string; token: Token; live: boolean }) {
    return <>{block(token as Tokens.Generic, live)}</>;
  },
  (before, after) => before.raw === after.raw && before.live === after.live && before.token.type === after.token.type,
);

function block(token: Tokens.Generic, live: boolean): ReactNode {
  switch (token.type) {
    case "heading":
      return createElement(
        `h${Math.min(6, token.depth + 1)}`,
        { className: HEADINGS[token.depth] ?? HEADINGS[4] },
        inline(token.tokens),
      );
    case "paragraph":
      return <p>{inline(token.tokens)}</p>;
    case "code":
      if (!live && languageOf(token.lang ?? "") === "mermaid") return <LazyDiagram source={token.text} />;
      return <CodeBlock code={token.text} language={languageOf(token.lang ?? "")} live={live} />;
    case "blockquote":
      return (
        <blockquote className="border-l-2 border-control pl-3 text-muted">
          <Blocks tokens={token.tokens ?? []} />
        </blockquote>
      );
    case "list":
      return <List token={token as Tokens.List} />;
    case "table":
      return <Table token={token as Tokens.Table} />;
    case "hr":
      return <hr className="border-line" />;
    case "math":
      return <LazyFormula source={token.text} display />;
    case "details":
      return <Details token={token as unknown as DetailsToken} />;
    case "footnote":
      return (
        <div className="text-muted">
          <sup>{token.label}</sup> <Blocks tokens={token.tokens ?? []} />
        </div>
      );
    case "html":
      return <p className="whitespace-pre-wrap">{token.raw}</p>;
    case "text":
      return <p>{token.tokens ? inline(token.tokens) : token.text}</p>;
    default:
      return <p className="whitespace-pre-wrap">{token.raw}</p>;
  }
}

const HEADINGS: Record<number, string> = {
  1: "text-[20px] font-semibold leading-snug",
  2: "text-[18px] font-semibold leading-snug",
  3: "text-[16px] font-semibold leading-snug",
  4: "text-prose font-semibold",
};

function Details({ token }: { token: DetailsToken }) {
  return (
    <details className="rounded-lg border border-line px-3 py-2" open={token.open}>
      <summary className="cursor-pointer font-medium">{inline(token.summary)}</summary>
      <div className="mt-2">
        <Blocks tokens={token.tokens} />
      </div>
    </details>
  );
}

function List({ token }: { token: Tokens.List }) {
  const Kind = token.ordered ? "ol" : "ul";
  const start = token.ordered && typeof token.start === "number" && token.start !== 1 ? { start: token.start } : {};
  return (
    <Kind className={token.ordered ? "list-decimal pl-6" : "list-disc pl-5"} {...start}>
      {token.items.map((item, index) => (
        <li key={index} className={item.task ? "-ml-5 list-none" : "my-0.5"}>
          {item.task && (
            <input
              type="checkbox"
              checked={item.checked ?? false}
              readOnly
              disabled
              className="mr-2"
              aria-label={item.checked ? "done" : "open"}
            />
          )}
          {item.tokens
            .filter((child) => (child.type as string) !== "checkbox")
            .map((child, at) =>
              child.type === "text" ? (
                <span key={at}>
                  {(child as Tokens.Text).tokens ? inline((child as Tokens.Text).tokens) : (child as Tokens.Text).text}
                </span>
              ) : (
                <Block key={at} raw={child.raw} token={child} live={false} />
              ),
            )}
        </li>
      ))}
    </Kind>
  );
}

function Table({ token }: { token: Tokens.Table }) {
  const latest = useRef(token);
  latest.current = token;
  return (
    <div className="group/table relative my-3">
      <div className="overflow-x-auto rounded-lg border border-line" tabIndex={0}>
        <table className="w-full border-collapse text-ui">
          <thead className="bg-bg2">
            <tr>
              {token.header.map((cell, index) => (
                <th
                  key={index}
                  className="border-b border-line px-3 py-1.5 font-semibold"
                  style={{ textAlign: cell.align ?? "left" }}
                >
                  {inline(cell.tokens)}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {token.rows.map((row, at) => (
              <tr key={at} className="border-b border-line last:border-0">
                {row.map((cell, index) => (
                  <td key={index} className="px-3 py-1.5 align-top" style={{ textAlign: cell.align ?? "left" }}>
                    {inline(cell.tokens)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <TableMenu source={latest} />
    </div>
  );
}

/** The menu of a table. It renders once; the table is read when an entry is chosen. */
const TableMenu = memo(function TableMenu({ source }: { source: RefObject<Tokens.Table> }) {
  const [opener, setOpener] = useState<HTMLElement | null>(null);
  const closedAt = useRef(Number.NEGATIVE_INFINITY);
  const copy = (text: string) => void copyText(text);
  return (
    <>
      <button
        type="button"
        aria-label="Copy table"
        aria-haspopup="menu"
        aria-expanded={opener !== null}
        className="absolute top-1 right-1 rounded-md border border-line bg-bg1 p-1 text-muted opacity-0 group-hover/table:opacity-100 focus-visible:opacity-100 aria-expanded:opacity-100 [&_svg]:size-3.5"
        onClick={(event) => {
          // Pressing the button of an open menu closes it and must not open it again.
          const isAgain = event.detail > 0 && performance.now() - closedAt.current < AGAIN_MS;
          if (!isAgain) setOpener(event.currentTarget);
        }}
      >
        <Copy />
      </button>
      {/* Mounted only while open, because each menu listens to all keys of the page. */}
      {opener && (
        <MenuAt
          place={placeOf(opener)}
          opener={opener}
          label="Copy table"
          items={() => [
            { label: "Copy as Markdown", onSelect: () => copy(source.current.raw.trim()) },
            { label: "Copy as CSV", onSelect: () => copy(csvOf(source.current)) },
          ]}
          onClose={() => {
            closedAt.current = performance.now();
            setOpener(null);
          }}
        />
      )}
    </>
  );
});

function csvOf(token: Tokens.Table): string {
  const quoted = (text: string) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  return [token.header, ...token.rows].map((row) => row.map((cell) => quoted(cell.text)).join(",")).join("\n");
}

function LazyFormula({ source, display }: { source: string; display: boolean }) {
  return (
    <Suspense fallback={<code className="text-code">{source}</code>}>
      <Formula source={source} display={display} />
    </Suspense>
  );
}

function LazyDiagram({ source }: { source: string }) {
  return (
    <Suspense fallback={<CodeBlock code={source} language="mermaid" />}>
      <Diagram source={source} />
    </Suspense>
  );
}

function inline(tokens: readonly Token[] | undefined): ReactNode {
  return tokens?.map((token, index) => <Inline key={index} token={token as Tokens.Generic} />);
}

function Inline({ token }: { token: Tokens.Generic }): ReactNode {
  switch (token.type) {
    case "strong":
      return <strong className="font-semibold">{inline(token.tokens)}</strong>;
    case "em":
      return <em>{inline(token.tokens)}</em>;
    case "del":
      return <del>{inline(token.tokens)}</del>;
    case "codespan":
      return <InlineCode text={token.text} />;
    case "br":
      return <br />;
    case "link":
      return (
        <Link href={token.href} text={token.text}>
          <InsideLink value>{inline(token.tokens)}</InsideLink>
        </Link>
      );
    case "image":
      return <RemoteImage href={token.href} text={token.text} />;
    case "math":
      return <LazyFormula source={token.text} display={token.display} />;
    case "escape":
      return token.text;
    case "footnote-ref":
      return <FootnoteReference token={token as unknown as FootnoteToken} />;
    case "html":
      return /^<br\s*\/?>$/i.test(token.raw) ? <br /> : token.raw;
    case "text":
      return token.tokens ? inline(token.tokens) : unescaped(token.text);
    default:
      return token.raw;
  }
}

/** Decode HTML entities in plain text, which the lexer leaves unchanged. */
function unescaped(text: string): string {
  if (!text.includes("&")) return text;
  return text.replace(/&(amp|lt|gt|quot|#39|nbsp);/g, (whole) => ENTITIES[whole] ?? whole);
}
const ENTITIES: Record<string, string> = {
  "&amp;": "&",
  "&lt;": "<",
  "&gt;": ">",
  "&quot;": '"',
  "&#39;": "'",
  "&nbsp;": "\u00a0",
};

/** A link with http, https or mailto. If its text names another host, the user has to confirm it. */
export function Link({ href, text, children }: { href: string; text: string; children: ReactNode }) {
  const [asks, setAsks] = useState(false);
  const safe = safeHref(href);
  if (!safe) return <span>{children}</span>;
  const misleads = isMisleading(text, safe);
  return (
    <>
      <a
        href={safe}
        target="_blank"
        rel="noopener noreferrer nofollow"
        className="text-accent underline decoration-1 underline-offset-2 break-words hover:decoration-2"
        onClick={(event) => {
          if (!misleads) return;
          event.preventDefault();
          setAsks(true);
        }}
      >
        {children}
      </a>
      {asks && (
        <Confirm
          open
          onOpenChange={setAsks}
          title={`This link leads to ${hostOf(safe)}`}
          text={<span className="break-all">{`Its text says “${text}”. The address is ${safe}`}</span>}
          action="Open it"
          onConfirm={() => window.open(safe, "_blank", "noopener,noreferrer")}
        />
      )}
    </>
  );
}

/** An image on another host is shown as a link: the page loads nothing from other hosts. */
function RemoteImage({ href, text }: { href: string; text: string }) {
  const safe = safeHref(href);
  if (!safe) return <span>{text}</span>;
  return (
    <Link href={safe} text="">
      <ImageIcon aria-hidden className="mr-1 inline size-3.5" />
      {text ? `${text} (image at ${hostOf(safe)})` : `Image at ${hostOf(safe)}`}
    </Link>
  );
}
