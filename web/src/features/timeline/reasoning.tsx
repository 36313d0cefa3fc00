import { Brain, ChevronRight } from "lucide-react";
import { memo, useEffect, useRef } from "react";
import { duration } from "@/chat/tool_texts";
import { LiveMarkdown, Markdown } from "@/features/timeline/markdown";
import { useOpen } from "@/state/opened_cards";
import { useDisplay } from "@/state/queries";
import { cx } from "@/ui/cx";
import { pulsing } from "@/ui/endless_animations";

/** Return the topic of reasoning: its first heading or bold line. */
export function topicOf(text: string): string {
  const found = /^\s*(?:#{1,6}\s+(.+)|\*\*(.+?)\*\*)/.exec(text);
  return (found?.[1] ?? found?.[2] ?? "").trim().slice(0, 80);
}

interface Props {
  id: string;
  /** The id that it had while it arrived. */
  liveId?: string;
  text: string;
  startedAt: string | null;
  endedAt: string | null;
  live: boolean;
}

/** Reasoning of the model, collapsed when it is complete. */
export const ReasoningRow = memo(function ReasoningRow({ id, liveId = id, text, startedAt, endedAt, live }: Props) {
  const { reasoningMode } = useDisplay();
  const otherwise = reasoningMode === "open" || (live && (reasoningMode === "auto" || reasoningMode === "preview"));
  const [open, setOpen] = useOpen(id, otherwise, liveId);
  const topic = topicOf(text);
  const ms = startedAt && endedAt ? Date.parse(endedAt) - Date.parse(startedAt) : null;
  const label = live
    ? topic
      ? `Thinking about ${topic}`
      : "Thinking"
    : ms !== null && ms >= 1000
      ? `Thought for ${duration(ms)}`
      : "Thought";
  return (
    <div data-testid="reasoning">
      <button
        type="button"
        aria-expanded={open}
        onClick={() => setOpen(!open)}
        className="flex items-center gap-2 rounded-md py-1 pr-2 text-muted hover:text-text"
      >
        <Brain aria-hidden className="size-4" />
        <span ref={live ? pulsing : null}>{label}</span>
        {!live && topic && <span className="truncate">· {topic}</span>}
        <ChevronRight aria-hidden className={cx("size-4 transition-transform", open && "rotate-90")} />
      </button>
      {open && (
        <Thoughts live={live} preview={live && reasoningMode !== "open"}>
          {live ? <LiveMarkdown text={text} /> : <Markdown text={text} />}
        </Thoughts>
      )}
    </div>
  );
});

function Thoughts({ live, preview, children }: { live: boolean; preview: boolean; children: React.ReactNode }) {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    // The preview scrolls to its own end; the page does not move.
    if (live && preview && box.current) box.current.scrollTop = box.current.scrollHeight;
  });
  return (
    <div
      ref={box}
      className={cx(
        "mt-1 ml-2 border-l-2 border-line pl-4 text-muted [&_.prose-flow]:text-ui",
        preview && "max-h-24 overflow-y-auto",
      )}
    >
      {children}
    </div>
  );
}
