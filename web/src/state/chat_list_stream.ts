/**
 * Changes of the chats that the user owns or reads. Nothing is replayed: after each `ready` the list has to be loaded
 * again, by `onReload`.
 */

import { createStore } from "zustand/vanilla";
import type { ChatView } from "@/api/types.gen";
import { Connection, type ConnectionState, type Host, INITIAL_CONNECTION } from "./stream_connection";

export interface WatchListener {
  /** Called when the stream is connected, also after a loss: load the current data. */
  onReload?: () => void;
  /** Called with the current state of a chat. `kinds` are the changes. */
  onChat?: (chat: ChatView, kinds: string[]) => void;
  onGone?: (chatId: string) => void;
}

const listeners = new Set<WatchListener>();
let connection: Connection | null = null;

export const watchState = createStore<{ conn: ConnectionState; ready: boolean }>(() => ({
  conn: INITIAL_CONNECTION,
  ready: false,
}));

/** Add a listener. If the stream is already connected, `onReload` is called immediately. */
export function subscribeWatch(listener: WatchListener): () => void {
  listeners.add(listener);
  if (watchState.getState().ready) listener.onReload?.();
  return () => listeners.delete(listener);
}

/** Open the watch stream. Called once, after the sign-in. */
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
