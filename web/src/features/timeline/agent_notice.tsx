import { Bot, ChevronDown, ChevronUp } from "lucide-react";
import { endOf, noticeTitle } from "@/chat/subagent_texts";
import type { NoticePart } from "@/chat/types";
import { Markdown } from "@/features/timeline/markdown";
import { OpenAgent } from "@/features/tools/agent_line";
import { isLongBody } from "@/features/tools/card_bodies";
import { useOpen } from "@/state/opened_cards";
import { cx } from "@/ui/cx";

/** The end of a subagent's turn, with its report. A long report is folded. */
export function AgentNoticeCard({ id, notice }: { id: string; notice: NoticePart }) {
  const report = notice.report ?? "";
  const isLong = isLongBody(report);
  const [open, setOpen] = useOpen(id, false);
  const { tone } = endOf(notice.outcome);
  const isCut = (notice.report_bytes ?? 0) > new TextEncoder().encode(report).length;
  return (
    <section
      aria-label={noticeTitle(notice)}
      data-testid="agent-notice"
      className={cx(
        "rounded-lg border bg-bg1",
        tone === "danger" ? "border-danger" : tone === "warn" ? "border-warn" : "border-line",
      )}
    >
      <div className="flex min-h-9 items-center gap-2 py-1.5 pr-2 pl-3">
        <Bot aria-hidden className="size-4 shrink-0 text-muted" />
        <span className="min-w-0 flex-1 break-words">{noticeTitle(notice)}</span>
        <span className="shrink-0 text-small text-muted">{notice.kind}</span>
        <OpenAgent chatId={notice.chat_id} title={notice.title} />
      </div>
      {(report || notice.error) && (
        <div className="border-t border-line px-3 py-2">
          {notice.error && <p className="mb-1 text-small break-words text-danger">{notice.error}</p>}
          <div className={cx(isLong && !open && "max-h-48 overflow-hidden")} inert={isLong && !open}>
            <Markdown text={report} />
          </div>
          {isCut && (!isLong || open) && (
            <p className="mt-1 text-small text-muted">
              This is the beginning of the report. Open the chat to read all of it.
            </p>
          )}
          {isLong && (
            <button
              type="button"
              aria-expanded={open}
              className="mt-1 flex items-center gap-1 text-small text-muted hover:text-text"
              onClick={() => setOpen(!open)}
            >
              {open ? <ChevronUp aria-hidden className="size-3.5" /> : <ChevronDown aria-hidden className="size-3.5" />}
              {open ? "Show less" : "Show all"}
            </button>
          )}
        </div>
      )}
    </section>
  );
}
