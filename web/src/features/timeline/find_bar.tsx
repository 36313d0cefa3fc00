import { ChevronDown, ChevronUp, X } from "lucide-react";
import { type RefObject, useEffect, useMemo, useRef, useState } from "react";
import { searchChat } from "@/api/chats";
import { plainText } from "@/chat/pending_operations";
import type { Row } from "@/chat/timeline_rows";
import { labelOf } from "@/chat/tool_texts";
import { IconButton } from "@/ui/button";
import { cx } from "@/ui/cx";
import type { FindProps } from "./find_shortcut";

/** Return the searchable text of a row. */
export function rowText(row: Row): string {
  switch (row.kind) {
    case "user":
      return plainText(row.message.content);
    case "prose":
    case "reasoning":
    case "notice":
      return row.text;
    case "tool":
      return `${labelOf(row.call, "done")} ${JSON.stringify(row.call.args ?? "")} ${JSON.stringify(row.call.result ?? "")}`;
    case "group":
      return row.items.map((item) => (item.kind === "tool" ? labelOf(item.call, "done") : item.text)).join(" ");
    default:
      return "";
  }
}

interface Props extends FindProps {
  input: RefObject<HTMLInputElement | null>;
  onClose: () => void;
}

/** A match: a loaded row, or a message that the server found. */
interface Hit {
  message: number;
  key: string | null;
}

/** Return the matches, newest first. A message that the server found is replaced by its row once it is loaded. */
export function hitsOf(rows: readonly Row[], wanted: string, found: readonly number[]): Hit[] {
  if (wanted.length < MIN_CHARACTERS) return [];
  const held = rows
    .filter((row) => rowText(row).toLowerCase().includes(wanted))
    .map((row): Hit => ({ message: Number(/^m(\d+)/.exec(row.key)?.[1] ?? 0), key: row.key }))
    .reverse();
  const known = new Set(held.map((hit) => hit.message));
  const others = found.flatMap((message): Hit[] => (known.has(message) ? [] : [{ message, key: null }]));
  return [...held, ...others].sort((a, b) => b.message - a.message);
}

const MIN_CHARACTERS = 2;
const MARKED = "find";
const MARKED_HERE = "find-here";
const MOST_MARKS = 500;
// Not in the style sheet, because the CSS parser of the build warns about `::highlight`.
const marks = typeof CSSStyleSheet === "undefined" ? null : new CSSStyleSheet();
marks?.replaceSync(
  `::highlight(${MARKED}) { background: var(--mark); color: var(--text-1); }
   ::highlight(${MARKED_HERE}) { background: var(--accent-color); color: var(--on-accent); }`,
);

function rangesOf(box: HTMLElement, wanted: string): Range[] {
  const ranges: Range[] = [];
  const walker = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node && ranges.length < MOST_MARKS; node = walker.nextNode()) {
    // Hidden headings repeat the text below them.
    if (node.parentElement?.closest(".sr-only")) continue;
    const text = (node.textContent ?? "").toLowerCase();
    for (let from = text.indexOf(wanted); from >= 0; from = text.indexOf(wanted, from + wanted.length)) {
      const range = new Range();
      range.setStart(node, from);
      range.setEnd(node, from + wanted.length);
      ranges.push(range);
    }
  }
  return ranges;
}

/** Scroll to a match inside a row, because only a part of a long row is visible. */
function reveal(box: HTMLElement, range: Range): void {
  const { top, bottom } = range.getBoundingClientRect();
  const view = box.getBoundingClientRect();
  if (top < view.top + 48 || bottom > view.bottom) box.scrollTop += top - view.top - view.height / 3;
}

/** The search field of a chat. It searches loaded rows, and older messages on the server. */
export function FindBar({ session, rows, box, onShow, onShowMessage, input, onClose }: Props) {
  const [query, setQuery] = useState("");
  // The current match; null until the user moves to the first one, the newest.
  const [here, setHere] = useState<Hit | null>(null);
  const [isLoading, setLoading] = useState(false);
  const [older, setOlder] = useState<number[]>([]);
  const isToReveal = useRef(false);
  const wanted = query.trim().toLowerCase();
  const hits = useMemo(() => hitsOf(rows, wanted, older), [rows, wanted, older]);
  const byKey = hits.findIndex((hit) => here?.key && hit.key === here.key);
  const at = byKey >= 0 ? byKey : hits.findIndex((hit) => hit.message === here?.message);

  useEffect(() => {
    setOlder([]);
    if (wanted.length < MIN_CHARACTERS) return;
    const abort = new AbortController();
    const timer = setTimeout(() => {
      // Searched as a phrase, as in the loaded rows.
      searchChat(session.id, `"${wanted.replaceAll('"', " ")}"`, abort.signal)
        .then((answer) => setOlder(answer.items.flatMap((item) => item.message_id ?? [])))
        .catch(() => {});
    }, 250);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [session, wanted]);

  // Matches are highlighted without changing the DOM of the rows.
  useEffect(() => {
    if (!("highlights" in CSS) || !marks) return;
    if (!document.adoptedStyleSheets.includes(marks)) document.adoptedStyleSheets.push(marks);
    if (wanted.length < MIN_CHARACTERS || !box.current) return;
    const ranges = rangesOf(box.current, wanted);
    const key = hits[at]?.key;
    const row = key ? box.current.querySelector(`[data-key="${CSS.escape(key)}"]`) : null;
    const those = ranges.filter((range) => row?.contains(range.startContainer));
    CSS.highlights.set(MARKED, new Highlight(...ranges));
    const first = new Highlight(...those);
    first.priority = 1;
    CSS.highlights.set(MARKED_HERE, first);
    if (isToReveal.current && those[0]) {
      isToReveal.current = false;
      reveal(box.current, those[0]);
    }
    return () => {
      CSS.highlights.delete(MARKED);
      CSS.highlights.delete(MARKED_HERE);
    };
  });

  const go = (by: 1 | -1) => {
    const from = at < 0 && by < 0 ? 0 : at;
    const next = hits[(from + by + hits.length) % hits.length];
    if (!next) return;
    setHere(next);
    isToReveal.current = true;
    if (next.key) onShow(next.key);
    else {
      setLoading(true);
      void onShowMessage(next.message).finally(() => setLoading(false));
    }
  };
  return (
    <search className="shows-focus absolute top-2 right-2 left-2 z-20 flex sm:left-auto items-center gap-1 rounded-lg border border-line bg-bg1 p-1 shadow-pop">
      <input
        ref={input}
        // biome-ignore lint/a11y/noAutofocus: the user opened it to type
        autoFocus
        aria-label="Find in this chat"
        placeholder="Find in this chat"
        value={query}
        onChange={(event) => {
          setQuery(event.target.value);
          setHere(null);
        }}
        onKeyDown={(event) => {
          if (event.key === "Enter") go(event.shiftKey ? -1 : 1);
          if (event.key === "Escape") onClose();
        }}
        className="min-w-0 flex-1 bg-transparent px-2 outline-none sm:w-52 placeholder:text-muted"
      />
      <output className={cx("min-w-12 text-center text-small text-muted tabular-nums", isLoading && "pulse")}>
        {wanted.length < MIN_CHARACTERS ? "" : hits.length === 0 ? "none" : `${Math.max(0, at) + 1}/${hits.length}`}
      </output>
      <IconButton label="Earlier match" size="small" onClick={() => go(1)}>
        <ChevronUp />
      </IconButton>
      <IconButton label="Later match" size="small" onClick={() => go(-1)}>
        <ChevronDown />
      </IconButton>
      <IconButton label="Close" size="small" onClick={onClose}>
        <X />
      </IconButton>
    </search>
  );
}
