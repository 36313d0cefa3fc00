import { useEffect } from "react";
import { useStore } from "zustand";
import type { ChatSession } from "@/state/chat_session";

/** Mark the chat as read when its newest row is visible in a visible tab. */
export function useReadMark(session: ChatSession, isFar: boolean, loaded: boolean): void {
  const newest = useStore(session.store, (state) => state.data.order.at(-1));
  useEffect(() => {
    if (!loaded || newest === undefined || isFar) return;
    const mark = () => {
      if (document.visibilityState === "visible") session.markRead(newest);
    };
    mark();
    const again = setTimeout(mark, 1_100);
    document.addEventListener("visibilitychange", mark);
    return () => {
      clearTimeout(again);
      document.removeEventListener("visibilitychange", mark);
    };
  }, [session, newest, isFar, loaded]);
}
