import { memo, useMemo } from "react";
import { useStore } from "zustand";
import { phaseOf } from "@/chat/phase";
import { shownBlocks } from "@/chat/preview";
import { liveRows, namesAfter, type Row, storedCalls } from "@/chat/rows";
import { duration } from "@/chat/tools";
import { LiveMarkdown } from "@/features/timeline/markdown";
import { ReasoningRow } from "@/features/timeline/reasoning";
import { RowView } from "@/features/timeline/row";
import { useSmoothText } from "@/features/timeline/smooth_text";
import type { ChatSession } from "@/state/chat_session";
import { useNow, useShownStatus } from "@/state/hooks";
import { useChat, useDisplay } from "@/state/queries";
import { cx } from "@/ui/cx";
import { Spinner } from "@/ui/spinner";

/** The running step. The only row that renders while text arrives. */
export const LiveRow = memo(function LiveRow({ session }: { session: ChatSession }) {
  const preview = useStore(session.store, (state) => state.data.preview);
  const { groupTools } = useDisplay();
  const messages = useStore(session.store, (state) => state.data.messages);
  const order = useStore(session.store, (state) => state.data.order);
  const held = useMemo(() => order.flatMap((id) => messages.get(id) ?? []), [messages, order]);
  const stored = useMemo(() => storedCalls(held), [held]);
  const names = useMemo(() => namesAfter(held), [held]);
  const blocks = preview
    ? shownBlocks(preview).filter((block) => block.kind !== "tool" || !stored.has(block.call.id))
    : [];
  const rows = liveRows(blocks, groupTools, names);
  const searches = preview?.blocks.some((block) => block.kind === "search" && !block.call.hasResult);
  return (
    <div className="space-y-3" data-testid="live">
      <div className={cx("space-y-3", preview?.stale && "opacity-50")}>
        {rows.map((row, index) => (
          <LivePart key={row.key} row={row} isLast={index === rows.length - 1} />
        ))}
      </div>
      {preview?.truncated && <p className="text-small text-muted">Live view paused, the full step follows.</p>}
      {searches && <p className="pulse text-muted">Searching the web</p>}
      <LiveStatus session={session} />
    </div>
  );
});

function LivePart({ row, isLast }: { row: Row; isLast: boolean }) {
  if (row.kind === "prose") return <SmoothProse text={row.text} isLast={isLast} />;
  if (row.kind === "reasoning") return <LiveThought row={row} isLast={isLast} />;
  return <RowView row={row} />;
}

function SmoothProse({ text, isLast }: { text: string; isLast: boolean }) {
  const shown = useSmoothText(text);
  return <LiveMarkdown text={isLast ? shown : text} />;
}

function LiveThought({ row, isLast }: { row: Extract<Row, { kind: "reasoning" }>; isLast: boolean }) {
  const shown = useSmoothText(row.text);
  return (
    <ReasoningRow
      id={row.id}
      text={isLast ? shown : row.text}
      startedAt={row.startedAt}
      endedAt={row.endedAt}
      live={isLast}
    />
  );
}

/** What the agent does while nothing of it can be read: thinking, waiting for a slot, stopping, reconnecting. */
function LiveStatus({ session }: { session: ChatSession }) {
  const status = useShownStatus(session);
  const phase = useStore(session.store, (state) =>
    phaseOf({ status, data: state.data, isLive: state.conn.phase === "live", queuedForCapacity: false }),
  );
  const lostAt = useStore(session.store, (state) => state.conn.lostAt);
  const { data: chat } = useChat(session.id);
  const now = useNow(1000, phase === "thinking" || phase === "reconnecting");
  const since = useStore(
    session.store,
    (state) => state.data.messages.get(state.data.order.at(-1) ?? 0)?.created_at ?? null,
  );
  const skew = useStore(session.store, (state) => state.data.clockSkew);
  switch (phase) {
    case "stopping":
      return <Line>Stopping</Line>;
    case "reconnecting":
      return now - lostAt > 2000 ? <Line>Reconnecting</Line> : null;
    case "thinking": {
      if (chat?.queued_for_capacity) return <Line>Waiting for a free slot</Line>;
      const ms = since ? now + skew - Date.parse(since) : 0;
      return <Line>{ms >= 3000 ? `Thinking ${duration(Math.floor(ms / 1000) * 1000)}` : "Thinking"}</Line>;
    }
    default:
      return null;
  }
}

function Line({ children }: { children: React.ReactNode }) {
  return (
    <p className="flex items-center gap-2 text-muted">
      <Spinner />
      <span className="tabular-nums">{children}</span>
    </p>
  );
}
