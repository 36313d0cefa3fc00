/** Live timelines of subagents inside their parent. Only a few have a stream at a time, because browsers limit them. */
import { useEffect } from "react";
import { useStore } from "zustand";
import { createStore } from "zustand/vanilla";
import type { ChatSession } from "@/state/chat_session";

export const MOST_STREAMS = 3;

// The subagents that are followed, the latest last.
const followed = createStore<{ ids: readonly string[] }>(() => ({ ids: [] }));

function without(id: string): readonly string[] {
  return followed.getState().ids.filter((one) => one !== id);
}

/** Follow a subagent. The one that was followed first is paused if there are too many. */
export function followAgent(id: string): void {
  followed.setState({ ids: [...without(id), id].slice(-MOST_STREAMS) });
}

function leaveAgent(id: string): void {
  followed.setState({ ids: without(id) });
}

/**
 * Keep the stream of a subagent open while `isWanted`. Return whether it is paused because others are followed. It goes
 * on when one of them ends.
 */
export function useAgentStream(session: ChatSession, isWanted: boolean): boolean {
  const isFollowed = useStore(followed, (state) => state.ids.includes(session.id));
  const hasRoom = useStore(followed, (state) => state.ids.length < MOST_STREAMS);
  useEffect(() => {
    if (!isWanted) return;
    followAgent(session.id);
    return () => leaveAgent(session.id);
  }, [session, isWanted]);
  useEffect(() => {
    if (isWanted && !isFollowed && hasRoom) followAgent(session.id);
  }, [session, isWanted, isFollowed, hasRoom]);
  useEffect(() => {
    if (isWanted && isFollowed) return session.open();
  }, [session, isWanted, isFollowed]);
  return isWanted && !isFollowed;
}
