import { useEffect, useMemo, useState } from "react";
import { useStore } from "zustand";
import { type QueueRow, shownQueue, shownStatus } from "@/chat/pending_operations";
import type { Status } from "@/chat/types";
import type { ChatSession, ChatSessionState } from "@/state/chat_session";
import { chatSession } from "@/state/chat_sessions";

/** Return the session of a chat, and follow the chat while the component is mounted. */
export function useSession(id: string): ChatSession {
  const session = useMemo(() => chatSession(id), [id]);
  useEffect(() => session.open(), [session]);
  return session;
}

/** Return a part of a session's state. Renders only when that part changes. */
export function useSessionState<T>(session: ChatSession, select: (state: ChatSessionState) => T): T {
  return useStore(session.store, select);
}

export function useShownStatus(session: ChatSession): Status {
  return useStore(session.store, (state) => shownStatus(state.data, state.pending));
}

export function useShownQueue(session: ChatSession): QueueRow[] {
  const queue = useStore(session.store, (state) => state.data.queue);
  const pending = useStore(session.store, (state) => state.pending);
  const status = useStore(session.store, (state) => state.data.status);
  // biome-ignore lint/correctness/useExhaustiveDependencies: only the queue and the status are used
  return useMemo(() => shownQueue(session.store.getState().data, pending), [session, queue, status, pending]);
}

/** Return the current time, updated every `ms` while `runs`. */
export function useNow(ms: number, runs = true): number {
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    if (!runs) return;
    setNow(Date.now());
    const timer = setInterval(() => setNow(Date.now()), ms);
    return () => clearInterval(timer);
  }, [ms, runs]);
  return now;
}
