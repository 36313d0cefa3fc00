/**
 * What happens to the chats that this person owns or reads. Nothing is replayed: every `ready` means to load the list
 * (again), which `onReload` does.
 */

import { createStore } from "zustand/vanilla";
import type { ChatView } from "@/api/types.gen";
import { Connection, type ConnectionState, type Host, INITIAL_CONNECTION } from "@/state/connection";

export interface WatchListener {
  /** From now on nothing is missed: load what is shown. Also after a loss. */
  onReload?: () => void;
  /** This chat is like this now. `kinds` say what changed. */
  onChat?: (chat: ChatView, kinds: string[]) => void;
  onGone?: (chatId: string) => void;
}

const listeners = new Set<WatchListener>();
let connection: Connection | null = null;

export const watchState = createStore<{ conn: ConnectionState; ready: boolean }>(() => ({
  conn: INITIAL_CONNECTION,
  ready: false,
}));

/** Hear of every chat. A listener that joins late is told to load at once. */
export function subscribeWatch(listener: WatchListener): () => void {
  listeners.add(listener);
  if (watchState.getState().ready) listener.onReload?.();
  return () => listeners.delete(listener);
}

/** Begin to watch; once, when somebody is signed in. */
export function startWatch(host?: Host): void {
  connection ??= new Connection(
    {
      path: "/chats/watch",
      query: () => ({}),
      onOpen: () => {},
      onState: (conn) => watchState.setState(conn.phase === "live" ? { conn } : { conn, ready: false }),
      onFrame: (events) => {
        for (const event of events) {
          if (event.type === "ready" || event.type === "resync") {
            watchState.setState({ ready: true });
            for (const one of listeners) one.onReload?.();
          } else if (event.type === "chat") {
            for (const one of listeners) one.onChat?.(event.chat, event.kinds);
          } else if (event.type === "chat_gone") {
            for (const one of listeners) one.onGone?.(event.chat_id);
          }
        }
      },
    },
    host,
  );
  connection.connect();
}

export function stopWatch(): void {
  connection?.close();
  connection = null;
  watchState.setState({ ready: false });
}
