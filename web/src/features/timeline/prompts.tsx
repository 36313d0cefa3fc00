import { ChevronDown, ChevronUp } from "lucide-react";
import { useMemo } from "react";
import { type StoreApi, useStore } from "zustand";
import { plainText } from "@/chat/pending";
import type { Row } from "@/chat/rows";
import { IconButton } from "@/ui/button";

interface Props {
  rows: readonly Row[];
  /** The first row in view. */
  top: StoreApi<{ key: string | null }>;
  onShow: (key: string) => void;
}

/** The prompt of the turn in view, when it is above it: a way back to it and to its neighbours. */
export function Prompts({ rows, top, onShow }: Props) {
  const places = useMemo(() => rows.flatMap((row, index) => (row.kind === "user" ? [{ index, row }] : [])), [rows]);
  const indexes = useMemo(() => new Map(rows.map((row, index) => [row.key, index])), [rows]);
  const at = useStore(top, (state) => indexes.get(state.key ?? "") ?? -1);
  const current = places.findLastIndex((one) => one.index <= at);
  const prompt = places[current];
  if (!prompt || rows[at]?.kind === "user" || rows[at]?.kind === "day") return null;
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
