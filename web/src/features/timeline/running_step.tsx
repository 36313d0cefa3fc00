import { Suspense, useMemo } from "react";
import { useStore } from "zustand";
import { sendRows } from "@/chat/pending_operations";
import { isNotice } from "@/chat/timeline_rows";
import { isActive } from "@/chat/types";
import { useConversation } from "@/features/conversation/chat_context";
import { LiveRow } from "@/features/timeline/live_row";
import { PendingRow } from "@/features/timeline/user_row";
import type { ChatSession } from "@/state/chat_session";
import { useShownStatus } from "@/state/session_hooks";
import { lazyPart } from "@/ui/lazy_part";

// Loaded when they are needed, because few chats have any.
const ErrorRow = lazyPart(async () => (await import("@/features/timeline/error_row")).ErrorRow);
const RetryBanner = lazyPart(async () => (await import("@/features/timeline/error_row")).RetryBanner);
const ActionCard = lazyPart(async () => (await import("@/features/tools/open_action_card")).ActionCard);

/** The part below the stored rows: messages being sent, the running step, the retry, the error, and open questions. */
export function Tail({ session, isEndSeen }: { session: ChatSession; isEndSeen: () => boolean }) {
  const { editMessage } = useConversation();
  const pending = useStore(session.store, (state) => state.pending);
  const error = useStore(session.store, (state) => state.data.error);
  const retry = useStore(session.store, (state) => state.data.retry);
  const action = useStore(session.store, (state) => state.data.action);
  const skew = useStore(session.store, (state) => state.data.clockSkew);
  const queued = useStore(session.store, (state) => state.data.queue.length);
  const status = useShownStatus(session);
  const sends = useMemo(() => sendRows(pending), [pending]);
  const edit = pending.find((op) => op.kind === "edit");
  const editLast = () => {
    const { messages, order } = session.store.getState().data;
    const last = order.findLast((id) => {
      const one = messages.get(id);
      return one?.role === "user" && !isNotice(one);
    });
    const message = last === undefined ? undefined : messages.get(last);
    if (message) editMessage(message);
  };
  return (
    <div className="space-y-3">
      {edit?.kind === "edit" && (
        <div data-key={edit.id}>
          <PendingRow id={edit.id} parts={edit.parts} failed={undefined} />
        </div>
      )}
      {sends.map((send) => (
        <div key={send.id} data-key={send.id} className="pt-3">
          <PendingRow id={send.id} parts={send.parts} failed={send.failed} waits={send.waits} />
        </div>
      ))}
      {isActive(status) && status !== "requires_action" && <LiveRow session={session} isEndSeen={isEndSeen} />}
      {status === "requires_action" && action && (
        <Suspense>
          <ActionCard action={action} clockSkew={skew} />
        </Suspense>
      )}
      <Suspense>
        {retry && <RetryBanner retry={retry} clockSkew={skew} />}
        {status === "error" && error && <ErrorRow error={error} queued={queued} lastPrompt={editLast} />}
      </Suspense>
    </div>
  );
}
