import { ChevronDown, ChevronUp } from "lucide-react";
import { useEffect, useMemo, useRef } from "react";
import { type StoreApi, useStore } from "zustand";
import { plainText } from "@/chat/pending_operations";
import type { Row } from "@/chat/timeline_rows";
import { useConversation } from "@/features/conversation/chat_context";
import { appearance } from "@/state/appearance";
import { IconButton } from "@/ui/button";
import { isTyping } from "@/ui/modifier_key";

/** The row at the top of the view below the bar, and the first row that is visible without the bar. */
export interface TopRow {
  key: string | null;
  first: string | null;
}

interface Props {
  rows: readonly Row[];
  top: StoreApi<TopRow>;
  onShow: (key: string) => void;
}

type UserRow = Extract<Row, { kind: "user" }>;

interface Place {
  index: number;
  row: UserRow;
}

/** The keys `[` and `]` move to the previous and next user message and focus it; `e` edits the last one. */
function usePromptKeys(
  rows: readonly Row[],
  places: readonly Place[],
  top: Props["top"],
  onShow: Props["onShow"],
): void {
  const { isOwner, isArchived, editMessage } = useConversation();
  const shown = useRef<Place | null>(null);
  useEffect(() => {
    const go = (by: 1 | -1) => {
      const at = rows.findIndex((row) => row.key === top.getState().key);
      // After a jump, the target is a little below the top, so the first visible row is the one before it.
      const here = shown.current && Math.abs(shown.current.index - at) <= 2 ? shown.current.index : at;
      const next =
        by < 0 ? places.findLast((one) => one.index < here) : places.find((one) => one.index > here && one.index > at);
      if (!next) return;
      shown.current = next;
      onShow(next.row.key);
      requestAnimationFrame(() =>
        document.querySelector<HTMLElement>(`[data-key="${next.row.key}"]`)?.focus({ preventScroll: true }),
      );
    };
    const onKeyDown = (event: KeyboardEvent) => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
      if (!appearance.getState().shortcuts || document.querySelector("[role=dialog], [role=menu]")) return;
      const last = places.at(-1);
      if (event.key === "[") go(-1);
      else if (event.key === "]") go(1);
      else if (event.key === "e" && last && isOwner && !isArchived) editMessage(last.row.message);
      else return;
      event.preventDefault();
    };
    window.addEventListener("keydown", onKeyDown);
    return () => window.removeEventListener("keydown", onKeyDown);
  }, [rows, places, top, onShow, isOwner, isArchived, editMessage]);
}

/** The bar with the user message of the visible turn, if it is scrolled out, and buttons to its neighbors. */
export function PromptBar({ rows, top, onShow }: Props) {
  const places = useMemo(
    () => rows.flatMap((row, index): Place[] => (row.kind === "user" ? [{ index, row }] : [])),
    [rows],
  );
  const indexes = useMemo(() => new Map(rows.map((row, index) => [row.key, index])), [rows]);
  const at = useStore(top, (state) => indexes.get(state.key ?? "") ?? -1);
  const first = useStore(top, (state) => (state.first === null ? rows.length : (indexes.get(state.first) ?? -1)));
  const current = places.findLastIndex((one) => one.index <= at);
  const prompt = places[current];
  usePromptKeys(rows, places, top, onShow);
  // The bar would cover the prompt that it names.
  if (!prompt || prompt.index >= first) return null;
  const go = (to: number) => {
    const other = places[to];
    if (other) onShow(other.row.key);
  };
  return (
    <nav
      aria-label="Prompts"
      className="absolute inset-x-0 top-0 z-10 flex items-center gap-1 border-b border-line bg-bg1 px-4 py-1"
    >
      <button
        type="button"
        className="min-w-0 flex-1 truncate py-0.5 text-left text-small text-muted hover:text-text"
        onClick={() => go(current)}
      >
        {plainText(prompt.row.message.content).split("\n", 1)[0] || "Attachment"}
      </button>
      <span className="text-small text-muted tabular-nums">
        {current + 1}/{places.length}
      </span>
      <IconButton label="Previous prompt" size="small" disabled={current <= 0} onClick={() => go(current - 1)}>
        <ChevronUp />
      </IconButton>
      <IconButton
        label="Next prompt"
        size="small"
        disabled={current >= places.length - 1}
        onClick={() => go(current + 1)}
      >
        <ChevronDown />
      </IconButton>
    </nav>
  );
}
