import { CircleStop, Globe, Info, Rows3, TriangleAlert } from "lucide-react";
import { memo } from "react";
import { sentence } from "@/api/errors";
import { hostOf } from "@/chat/markdown";
import type { Row, TurnFigures } from "@/chat/timeline_rows";
import { duration, number, text } from "@/chat/tool_texts";
import { errorCard } from "@/chat/turn_errors";
import type { ChatError } from "@/chat/types";
import { useConversation } from "@/features/conversation/chat_context";
import { DebugButton } from "@/features/debug/debug_button";
import { AgentNoticeCard } from "@/features/timeline/agent_notice";
import { Link, Markdown } from "@/features/timeline/markdown";
import { ReasoningRow } from "@/features/timeline/reasoning";
import { dayName, When } from "@/features/timeline/timestamp";
import { UserRow } from "@/features/timeline/user_row";
import { ToolGroup } from "@/features/tools/call_group";
import { ToolCard } from "@/features/tools/tool_card";
import { useOpen } from "@/state/opened_cards";
import { Button } from "@/ui/button";
import { compact, dollars } from "@/ui/money";
import { toast } from "@/ui/toast";
import { CopyButton } from "./code_block";
import { Files } from "./message_files";

/** One row of a timeline. Memoized, because unchanged rows are the same objects. */
export const RowView = memo(function RowView({ row }: { row: Row }) {
  switch (row.kind) {
    case "day":
      return (
        <div className="flex items-center gap-3 py-1 text-small text-muted">
          <span className="h-px flex-1 bg-line" />
          <time dateTime={row.at}>{dayName(row.at)}</time>
          <span className="h-px flex-1 bg-line" />
        </div>
      );
    case "user":
      return <UserRow message={row.message} inContext={row.inContext} steered={row.steered} />;
    case "prose":
      return row.refusal ? (
        <div className="border-l-2 border-warn pl-3">
          <Markdown text={row.text} />
        </div>
      ) : (
        <Markdown text={row.text} />
      );
    case "reasoning":
      return (
        <ReasoningRow
          id={row.id}
          liveId={row.liveId}
          text={row.text}
          startedAt={row.startedAt}
          endedAt={row.endedAt}
          live={false}
        />
      );
    case "tool":
      return <ToolCard call={row.call} active={row.active} latest={row.latest} />;
    case "group":
      return <ToolGroup items={row.items} active={row.active} />;
    case "sources":
      return <Sources id={row.id} sources={row.sources} />;
    case "files":
      return <Files files={row.files} />;
    case "notice":
      return (
        <p role="note" className="flex items-start gap-2 rounded-lg bg-bg2 px-3 py-2 text-small text-muted">
          <Info aria-hidden className="mt-0.5 size-3.5 shrink-0" />
          <span className="min-w-0 break-words whitespace-pre-wrap">{row.text}</span>
        </p>
      );
    case "agent":
      return <AgentNoticeCard id={row.key} notice={row.notice} />;
    case "unknown":
      return <span className="rounded bg-bg3 px-2 py-0.5 text-small text-muted">Unsupported content</span>;
    case "compaction":
      return <Compaction id={row.id} result={row.result} running={row.running} />;
    case "interrupted":
      return <Interrupted at={row.at} next={row.latest ? row.next : null} />;
    case "failed":
      return <Failed at={row.at} error={row.error} />;
    case "footer":
      return <Footer figures={row.figures} />;
  }
});

function Sources({ id, sources }: { id: string; sources: Extract<Row, { kind: "sources" }>["sources"] }) {
  const [open, setOpen] = useOpen(id, false);
  return (
    <div>
      <button
        type="button"
        aria-expanded={open}
        className="flex items-center gap-2 py-1 text-muted hover:text-text"
        onClick={() => setOpen(!open)}
      >
        <Globe aria-hidden className="size-4" />
        Searched the web: {sources.length} {sources.length === 1 ? "result" : "results"}
      </button>
      {open && (
        <ol className="mt-1 space-y-1.5 pl-1">
          {sources.map((one, index) => {
            const host = hostOf(one.url);
            return (
              <li key={one.url} className="flex items-start gap-2">
                <span
                  aria-hidden
                  className="grid size-5 shrink-0 place-items-center rounded bg-bg3 text-small uppercase"
                >
                  {host.replace(/^www\./, "").charAt(0) || index + 1}
                </span>
                <span className="min-w-0">
                  <Link href={one.url} text="">
                    {one.title || one.url}
                  </Link>
                  <span className="block text-small text-muted">{host}</span>
                </span>
              </li>
            );
          })}
        </ol>
      )}
    </div>
  );
}

const COMPACTED: Record<string, string> = {
  manual: "on request",
  user: "on request",
  overflow: "because the conversation was too long for the model",
};

/** Return the title of a compaction row: the summary, its failure, or a user message that was cut. */
export function compactionTitle(result: Record<string, unknown>, why: string, running: boolean): string {
  if (running) return "Summarizing the conversation";
  if (text(result.error)) return `The summary failed: ${text(result.error)}`;
  const calls = number(result.calls) ?? 1;
  const rungs = Array.isArray(result.rungs) ? result.rungs : [];
  const pieces = rungs.includes("pieces") ? `, in ${calls} requests` : "";
  const spilled = Array.isArray(result.spilled) ? result.spilled.length : 0;
  const cut = spilled > 0 ? "; the model reads the beginning and the end of the last message" : "";
  return text(result.summary) || !cut ? `Summarized ${why}${pieces}${cut}` : `Shortened ${why}${cut}`;
}

function Compaction({ id, result, running }: { id: string; result: Record<string, unknown>; running: boolean }) {
  const [open, setOpen] = useOpen(id, false);
  const percent = number(result.percent) ?? number(result.usage_percent);
  const why =
    COMPACTED[text(result.source)] ?? `automatically${percent === null ? "" : ` at ${Math.round(percent)} %`}`;
  const summary = text(result.summary);
  const line = "flex w-full items-center gap-3 text-small text-muted";
  const words = (
    <>
      <span className="h-px min-w-4 flex-1 bg-line" />
      <Rows3 aria-hidden className="size-3.5 shrink-0" />
      <span className="min-w-0 text-center break-words">{compactionTitle(result, why, running)}</span>
      <span className="h-px min-w-4 flex-1 bg-line" />
    </>
  );
  return (
    <div className="py-2">
      {summary ? (
        <button type="button" aria-expanded={open} onClick={() => setOpen(!open)} className={`${line} hover:text-text`}>
          {words}
        </button>
      ) : (
        <p className={line}>{words}</p>
      )}
      {open && summary && (
        <div className="mt-2 rounded-lg bg-bg2 px-4 py-3">
          <Markdown text={summary} />
        </div>
      )}
    </div>
  );
}

/** The mark of a stopped turn. A turn that was stopped before an answer can be tried again. */
function Interrupted({ at, next }: { at: string; next: "continue" | "retry" | null }) {
  const { isOwner, isArchived, sendText, session } = useConversation();
  const act = () =>
    (next === "retry" ? session.retry() : sendText("Continue.")).catch((error: unknown) =>
      toast(sentence(error), { kind: "error" }),
    );
  return (
    <p className="flex items-center gap-2 text-muted">
      <CircleStop aria-hidden className="size-4" />
      Stopped at <When at={at} />
      {next && isOwner && !isArchived && (
        <Button size="small" onClick={() => void act()}>
          {next === "retry" ? "Try again" : "Continue"}
        </Button>
      )}
    </p>
  );
}

/** The mark of a failed turn, in one line. The card with the actions is below the rows while the error is current. */
function Failed({ at, error }: { at: string; error: ChatError }) {
  return (
    <p className="flex items-center gap-2 text-muted" data-testid="failed-mark" title={error.message}>
      <TriangleAlert aria-hidden className="size-4 shrink-0 text-danger" />
      <span className="min-w-0 truncate">
        Failed: {errorCard(error).title}. {error.message}
      </span>
      <When at={at} className="shrink-0" />
    </p>
  );
}

/** The footer of a turn: time, model, steps, tokens and cost. It is faint until it is hovered or focused. */
function Footer({ figures }: { figures: TurnFigures }) {
  const { modelName } = useConversation();
  const ms = Date.parse(figures.endedAt) - Date.parse(figures.startedAt);
  const parts = [
    Number.isFinite(ms) && ms >= 1000 ? duration(ms) : null,
    [modelName(figures.modelConfigId), figures.effort].filter(Boolean).join(" ") || null,
    figures.steps > 1 ? `${figures.steps} steps` : null,
    figures.input + figures.output > 0
      ? `${compact(figures.input)} in${figures.cached > 0 ? ` (${compact(figures.cached)} cached)` : ""}, ${compact(figures.output)} out`
      : null,
    figures.costMicros !== null ? dollars(figures.costMicros) : null,
  ].filter(Boolean);
  return (
    <footer className="flex flex-wrap items-center gap-x-1 gap-y-1 pb-2 text-small text-muted">
      {/* The separator follows its item, so that no line begins with one. */}
      {[<When key="when" at={figures.endedAt} />, ...parts].map((part, index) => (
        <span key={index}>
          {part}
          {index < parts.length && <span aria-hidden> ·</span>}
        </span>
      ))}
      {figures.answer && <CopyButton text={figures.answer} label="Copy answer" />}
      <DebugButton first={figures.firstMessageId} last={figures.lastMessageId} />
    </footer>
  );
}
