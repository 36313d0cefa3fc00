import { ChevronDown, ChevronUp, X } from "lucide-react";
import { type RefObject, useEffect, useMemo, useRef, useState } from "react";
import { searchChat } from "@/api/chats";
import { plainText } from "@/chat/pending";
import type { Row } from "@/chat/rows";
import { labelOf } from "@/chat/tools";
import type { ChatSession } from "@/state/chat_session";
import { IconButton } from "@/ui/button";

/** The words of a row, for finding them. */
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

interface Props {
  session: ChatSession;
  rows: readonly Row[];
  box: RefObject<HTMLElement | null>;
  onShow: (key: string) => void;
}

// Not in the style sheet: the build's own parser does not know the name and says so every time.
const marks = typeof CSSStyleSheet === "undefined" ? null : new CSSStyleSheet();
marks?.replaceSync("::highlight(find) { background: var(--mark); color: var(--text-1); }");

/** Find in this chat: rows that are held, then older ones by the server. Pressed twice, the browser's own. */
export function Find({ session, rows, box, onShow }: Props) {
  const [open, setOpen] = useState(false);
  const [query, setQuery] = useState("");
  // None yet; the first is the newest.
  const [at, setAt] = useState(-1);
  const [older, setOlder] = useState<number[]>([]);
  const input = useRef<HTMLInputElement>(null);
  const wanted = query.trim().toLowerCase();
  const found = useMemo(
    () =>
      wanted.length < 2 ? [] : rows.filter((row) => rowText(row).toLowerCase().includes(wanted)).map((row) => row.key),
    [rows, wanted],
  );

  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.key.toLowerCase() !== "f" || !(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey)
        return;
      if (open && document.activeElement === input.current) return;
      event.preventDefault();
      setOpen(true);
      input.current?.select();
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, [open]);

  useEffect(() => {
    setOlder([]);
    if (!open || wanted.length < 2) return;
    const abort = new AbortController();
    const timer = setTimeout(() => {
      searchChat(session.id, wanted, abort.signal)
        .then((answer) => {
          const first = session.store.getState().data.order[0] ?? 0;
          setOlder(
            answer.items.flatMap((item) => (item.message_id && item.message_id < first ? [item.message_id] : [])),
          );
        })
        .catch(() => {});
    }, 250);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [session, wanted, open]);

  // Words are marked without touching the rows.
  useEffect(() => {
    if (!("highlights" in CSS) || !marks) return;
    if (!document.adoptedStyleSheets.includes(marks)) document.adoptedStyleSheets.push(marks);
    CSS.highlights.delete("find");
    if (!open || wanted.length < 2 || !box.current) return;
    const ranges: Range[] = [];
    const walker = document.createTreeWalker(box.current, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node && ranges.length < 500; node = walker.nextNode()) {
      const text = (node.textContent ?? "").toLowerCase();
      for (let from = text.indexOf(wanted); from >= 0; from = text.indexOf(wanted, from + wanted.length)) {
        const range = new Range();
        range.setStart(node, from);
        range.setEnd(node, from + wanted.length);
        ranges.push(range);
      }
    }
    CSS.highlights.set("find", new Highlight(...ranges));
    return () => void CSS.highlights.delete("find");
  });

  if (!open) return null;
  const total = found.length + older.length;
  const go = (to: number) => {
    if (total === 0) return;
    const next = (to + total) % total;
    setAt(next);
    // Newest first: what is looked for is more often near.
    const key = found[found.length - 1 - next];
    if (key) onShow(key);
    else {
      const message = older[next - found.length];
      if (message) void session.loadUntil(message).then(() => onShow(`m${message}`));
    }
  };
  const close = () => {
    setOpen(false);
    setQuery("");
  };
  return (
    <search className="absolute top-2 right-4 z-20 flex items-center gap-1 rounded-lg border border-line bg-bg1 p-1 shadow-pop">
      <input
        ref={input}
        // biome-ignore lint/a11y/noAutofocus: opened by a key, to be typed into
        autoFocus
        aria-label="Find in this chat"
        placeholder="Find in this chat"
        value={query}
        onChange={(event) => {
          setQuery(event.target.value);
          setAt(-1);
        }}
        onKeyDown={(event) => {
          if (event.key === "Enter") go(at + (event.shiftKey ? -1 : 1));
          if (event.key === "Escape") close();
        }}
        className="w-52 bg-transparent px-2 outline-none placeholder:text-muted"
      />
      <output className="min-w-12 text-center text-small text-muted tabular-nums">
        {wanted.length < 2 ? "" : total === 0 ? "none" : `${Math.max(0, at) + 1}/${total}`}
      </output>
      <IconButton label="Earlier match" size="small" onClick={() => go(at + 1)}>
        <ChevronUp />
      </IconButton>
      <IconButton label="Later match" size="small" onClick={() => go(at - 1)}>
        <ChevronDown />
      </IconButton>
      <IconButton label="Close" size="small" onClick={close}>
        <X />
      </IconButton>
    </search>
  );
}
