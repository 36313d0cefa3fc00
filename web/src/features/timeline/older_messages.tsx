import { type RefObject, useEffect } from "react";
import { useStore } from "zustand";
import type { ChatSession } from "@/state/chat_session";
import { Button } from "@/ui/button";
import { pulsing } from "@/ui/endless_animations";

/** The line above the first loaded row while the chat has older messages. */
export function OlderMessages({ session }: { session: ChatSession }) {
  const older = useStore(session.store, (state) => state.older);
  const hasMore = useStore(session.store, (state) => state.data.hasMore);
  if (!hasMore) return null;
  return (
    <div className="flex h-10 items-center justify-center text-small text-muted">
      {older === "error" ? (
        <Button size="small" onClick={() => void session.loadOlder()}>
          Older messages could not be loaded. Retry
        </Button>
      ) : (
        <span ref={older === "loading" ? pulsing : null}>Older messages</span>
      )}
    </div>
  );
}

/** Load the previous page of messages when the view is near the top. */
export function useLoadOlder(session: ChatSession, box: RefObject<HTMLDivElement | null>): void {
  const hasMore = useStore(session.store, (state) => state.data.hasMore);
  const older = useStore(session.store, (state) => state.older);
  const first = useStore(session.store, (state) => state.data.order[0]);
  useEffect(() => {
    const element = box.current;
    if (!element || !hasMore || older !== "idle" || first === undefined) return;
    const check = () => {
      if (element.scrollTop < 1000) void session.loadOlder();
    };
    // Delayed, because a chat that opens at its end is at its top for a moment.
    const timer = setTimeout(check, 300);
    element.addEventListener("scroll", check, { passive: true });
    return () => {
      clearTimeout(timer);
      element.removeEventListener("scroll", check);
    };
  }, [session, box, hasMore, older, first]);
}
