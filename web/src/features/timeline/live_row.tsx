import { memo, useMemo, useState } from "react";
import { useStore } from "zustand";
import { sentence } from "@/api/errors";
import { NUDGE_SECONDS, phaseOf, silenceOf } from "@/chat/agent_phase";
import { isOnlyLonger, lastWords, type Preview, shownBlocks } from "@/chat/preview";
import { liveRows, namesAfter, type Row, storedCalls } from "@/chat/timeline_rows";
import { useConversation } from "@/features/conversation/chat_context";
import { LiveMarkdown } from "@/features/timeline/markdown";
import { ReasoningRow } from "@/features/timeline/reasoning";
import { RowView } from "@/features/timeline/row";
import { type Arriving, useSmoothText } from "@/features/timeline/smooth_text";
import type { ChatSession, ChatSessionState } from "@/state/chat_session";
import { useChat, useDisplay } from "@/state/queries";
import { useNow, useShownStatus } from "@/state/session_hooks";
import { Button } from "@/ui/button";
import { cx } from "@/ui/cx";
import { pulsing } from "@/ui/endless_animations";
import { Spinner } from "@/ui/spinner";
import { toast } from "@/ui/toast";

interface Props {
  session: ChatSession;
  /** Returns whether the end of the timeline is visible. */
  isEndSeen?: () => boolean;
  /** Whether the stream was closed on purpose. The text so far is shown then, without a status. */
  isPaused?: boolean;
}

const always = () => true;

/** The running step. It is the only row that renders while text arrives. */
export const LiveRow = memo(function LiveRow({ session, isEndSeen = always, isPaused = false }: Props) {
  const preview = usePreview(session);
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
    <>
      <div className="space-y-3" data-testid="live">
        <div className={cx("space-y-3", preview?.stale && "opacity-50")}>
          {rows.map((row, index) => (
            <LivePart
              key={row.key}
              row={row}
              session={index === rows.length - 1 ? session : null}
              isEndSeen={isEndSeen}
            />
          ))}
        </div>
        {preview?.truncated && <p className="text-small text-muted">Live view paused, the full step follows.</p>}
        {searches && (
          <p ref={pulsing} className="text-muted">
            Searching the web
          </p>
        )}
      </div>
      {!isPaused && <LiveStatus session={session} />}
    </>
  );
});

/** Return the preview, updated only when it changes by more than additional text. */
function usePreview(session: ChatSession): Preview | null {
  const [select] = useState(() => {
    let held: Preview | null = null;
    return ({ data }: ChatSessionState) => {
      if (!isOnlyLonger(held, data.preview)) held = data.preview;
      return held;
    };
  });
  return useStore(session.store, select);
}

interface PartProps<R> {
  row: R;
  /** Set for the last part, which may grow. */
  session: ChatSession | null;
  isEndSeen: () => boolean;
}

function LivePart({ row, ...rest }: PartProps<Row>) {
  if (row.kind === "prose") return <LiveProse row={row} {...rest} />;
  if (row.kind === "reasoning") return <LiveThought row={row} {...rest} />;
  return <RowView row={row} />;
}

function LiveProse({ row, session, isEndSeen }: PartProps<Extract<Row, { kind: "prose" }>>) {
  return <LiveMarkdown text={useSmoothText(row.text, useArriving(session, isEndSeen))} />;
}

function LiveThought({ row, session, isEndSeen }: PartProps<Extract<Row, { kind: "reasoning" }>>) {
  const text = useSmoothText(row.text, useArriving(session, isEndSeen));
  return (
    <ReasoningRow id={row.id} text={text} startedAt={row.startedAt} endedAt={row.endedAt} live={session !== null} />
  );
}

function useArriving(session: ChatSession | null, isSeen: () => boolean): Arriving | null {
  return useMemo(() => {
    if (!session) return null;
    const read = () => lastWords(session.store.getState().data.preview);
    return { read, subscribe: session.store.subscribe, isSeen };
  }, [session, isSeen]);
}

/** The status line: what the turn waits for and for how long, with the button to try again after a long silence. */
function LiveStatus({ session }: { session: ChatSession }) {
  const status = useShownStatus(session);
  const phase = useStore(session.store, (state) =>
    phaseOf({ status, data: state.data, isLive: state.conn.phase === "live", queuedForCapacity: false }),
  );
  const lostAt = useStore(session.store, (state) => state.conn.lostAt);
  const { data: chat } = useChat(session.id);
  const { isOwner } = useConversation();
  const works = phase === "thinking" || phase === "streaming" || phase === "tools";
  const now = useNow(1000, works || phase === "reconnecting");
  switch (phase) {
    case "stopping":
      return <Line>Stopping</Line>;
    case "reconnecting":
      return now - lostAt > 2000 ? <Line>Reconnecting</Line> : null;
    case "thinking":
    case "streaming":
    case "tools": {
      if (chat?.queued_for_capacity) return <Line>Waiting for a free slot</Line>;
      // Read once a second, and not with each part that arrives.
      const { text, seconds } = silenceOf(session.store.getState().data, now);
      return (
        <Line>
          {text}
          {seconds >= NUDGE_SECONDS && isOwner && <TryAgainNow session={session} />}
        </Line>
      );
    }
    default:
      return null;
  }
}

/** End what the turn waits for. A model call is repeated; stopped tools return their output so far. */
export function TryAgainNow({ session }: { session: ChatSession }) {
  const nudge = () => session.nudge().catch((error: unknown) => toast(sentence(error), { kind: "error" }));
  return (
    <Button size="small" className="ml-2" onClick={() => void nudge()}>
      Try again now
    </Button>
  );
}

function Line({ children }: { children: React.ReactNode }) {
  return (
    <p className="flex items-center gap-2 text-muted" data-testid="phase">
      <Spinner />
      <span className="tabular-nums">{children}</span>
    </p>
  );
}
