import { useLayoutEffect, useMemo, useRef, useState } from "react";
import { useStore } from "zustand";
import type { Row } from "@/chat/timeline_rows";
import { errorCard } from "@/chat/turn_errors";
import { isActive } from "@/chat/types";
import { type Conversation, ConversationContext, useConversation } from "@/features/conversation/chat_context";
import { RowBoundary } from "@/features/timeline/article";
import { LiveRow } from "@/features/timeline/live_row";
import { RowView } from "@/features/timeline/row";
import { useRows } from "@/features/timeline/timeline";
import { followAgent, useAgentStream } from "@/state/agent_streams";
import type { ChatSession } from "@/state/chat_session";
import { chatSession } from "@/state/chat_sessions";
import { Button } from "@/ui/button";
import { Spinner } from "@/ui/spinner";

/** The number of rows at first, and how many more each press shows. */
const ROWS = 60;
/** The view follows the end within this distance of it. */
const NEAR_END_PX = 24;
/** A scroll event within this time after an input event is caused by the user. */
const USER_ACT_MS = 600;

interface Props {
  chatId: string;
  title: string;
  /** Whether the subagent is at work, so that its timeline changes. */
  isAtWork: boolean;
}

/** The timeline of a subagent inside its parent: read-only, of limited height, and live while the subagent works. */
export function AgentTimeline({ chatId, title, isAtWork }: Props) {
  const parent = useConversation();
  const session = useMemo(() => chatSession(chatId), [chatId]);
  const loaded = useStore(session.store, (state) => state.data.loaded);
  const isRunning = useStore(session.store, (state) => isActive(state.data.status));
  const isPaused = useAgentStream(session, !loaded || isAtWork || isRunning);
  const conversation = useMemo((): Conversation => {
    // Nothing can be sent from here: the subagent's own page is for that.
    return { ...parent, chatId, session, isOwner: false, sendText: async () => {}, insertText: () => {} };
  }, [parent, chatId, session]);
  const ending = useStore(session.store, (state) => state.conn.ending);
  if (!loaded) {
    if (isPaused) return <Paused chatId={chatId} />;
    if (ending && ending !== "reconnect")
      return <p className="text-small text-muted">This chat cannot be shown here.</p>;
    return (
      <p className="flex items-center gap-2 text-small text-muted">
        <Spinner />
        Loading
      </p>
    );
  }
  return (
    <ConversationContext value={conversation}>
      <Transcript session={session} title={title} isPaused={isPaused} />
      {isPaused && <Paused chatId={chatId} />}
    </ConversationContext>
  );
}

/** Says that others are followed instead. */
function Paused({ chatId }: { chatId: string }) {
  return (
    <p className="mt-2 flex flex-wrap items-center gap-2 text-small text-muted">
      Paused, because other agents are shown live.
      <Button size="small" onClick={() => followAgent(chatId)}>
        Show live
      </Button>
    </p>
  );
}

/** Return the rows to show: the task is above the timeline, and the figures are in the header of its card. */
function shownRows(rows: readonly Row[], hasMore: boolean): Row[] {
  const task = hasMore ? -1 : rows.findIndex((row) => row.kind === "user");
  return rows.filter((row, index) => index !== task && row.kind !== "day" && row.kind !== "footer");
}

interface TranscriptProps {
  session: ChatSession;
  title: string;
  isPaused: boolean;
}

function Transcript({ session, title, isPaused }: TranscriptProps) {
  const all = useRows(session);
  const hasMore = useStore(session.store, (state) => state.data.hasMore);
  const status = useStore(session.store, (state) => state.data.status);
  const error = useStore(session.store, (state) => state.data.error);
  const older = useStore(session.store, (state) => state.older);
  const [most, setMost] = useState(ROWS);
  const rows = useMemo(() => shownRows(all, hasMore), [all, hasMore]);
  const shown = useMemo(() => rows.slice(-most), [rows, most]);
  const box = useFollowedEnd();
  const isLive = isActive(status) && status !== "requires_action";
  const showEarlier = () => {
    setMost(most + ROWS);
    if (rows.length < most + ROWS) void session.loadOlder();
  };
  return (
    <section
      ref={box}
      tabIndex={0}
      aria-label={`Timeline of ${title}`}
      className="max-h-96 overflow-y-auto border-l-2 border-line pl-3"
    >
      <div className="space-y-3">
        {(hasMore || rows.length > most) && (
          <Button size="small" disabled={older === "loading"} onClick={showEarlier}>
            Show earlier steps
          </Button>
        )}
        {shown.map((row) => (
          <RowBoundary key={row.key} row={row}>
            <RowView row={row} />
          </RowBoundary>
        ))}
        {isLive && <LiveRow session={session} isPaused={isPaused} />}
        {status === "error" && error && (
          <p className="text-small break-words text-danger">{error.message || errorCard(error).title}</p>
        )}
        {shown.length === 0 && !isActive(status) && status !== "error" && (
          <p className="text-small text-muted">No steps yet.</p>
        )}
      </div>
    </section>
  );
}

const ACTS = ["wheel", "touchmove", "pointerdown", "keydown"];

/** Return a ref for a box that stays at its end while its content grows, until the user scrolls up. */
function useFollowedEnd() {
  const box = useRef<HTMLElement>(null);
  useLayoutEffect(() => {
    const element = box.current;
    const inner = element?.firstElementChild;
    if (!element || !inner) return;
    let isFollowing = true;
    let actedAt = Number.NEGATIVE_INFINITY;
    const follow = () => {
      if (isFollowing) element.scrollTop = element.scrollHeight;
    };
    const acted = () => {
      actedAt = performance.now();
    };
    // Other scroll events may be late: the content has grown meanwhile, and the end is far.
    const scrolled = () => {
      if (performance.now() - actedAt > USER_ACT_MS) return;
      isFollowing = element.scrollHeight - element.scrollTop - element.clientHeight < NEAR_END_PX;
    };
    const observer = new ResizeObserver(follow);
    observer.observe(inner);
    for (const act of ACTS) element.addEventListener(act, acted, { passive: true });
    element.addEventListener("scroll", scrolled, { passive: true });
    follow();
    return () => {
      observer.disconnect();
      for (const act of ACTS) element.removeEventListener(act, acted);
      element.removeEventListener("scroll", scrolled);
    };
  }, []);
  return box;
}
