/** The chats that are held in memory: the last eight, so that going back to one paints at once. */
import { dropEarly } from "@/api/http";
import { ChatSession } from "@/state/chat_session";

const KEPT = 8;
const sessions = new Map<string, ChatSession>();

export function chatSession(id: string): ChatSession {
  const known = sessions.get(id) ?? new ChatSession(id);
  sessions.delete(id);
  sessions.set(id, known);
  for (const [other, session] of sessions) {
    if (sessions.size <= KEPT) break;
    session.close();
    sessions.delete(other);
  }
  return known;
}

/** A chat is gone, or somebody signed out. */
export function forgetSession(id?: string): void {
  for (const [other, session] of sessions) {
    if (id !== undefined && other !== id) continue;
    session.close();
    sessions.delete(other);
  }
}

/** Somebody signed in again: what the end of the session stopped goes on. */
export function reconnectSessions(): void {
  for (const session of sessions.values()) session.reconnect();
}

// Longer than any start takes; then whoever shows the chat keeps it.
const AHEAD_MS = 10_000;

/** Open the chat that the page begins with before anything is rendered: its messages came with the application. */
export function openAhead(): void {
  const id = /^\/c\/([0-9a-f-]{36})$/.exec(location.pathname)?.[1];
  const end = id ? chatSession(id).open() : null;
  setTimeout(() => {
    end?.();
    dropEarly();
  }, AHEAD_MS);
}

/** Follow the page: called once at the start. */
export function followPage(): void {
  const each = (act: (session: ChatSession) => void) => {
    for (const session of sessions.values()) act(session);
  };
  document.addEventListener("visibilitychange", () =>
    each((one) => one.visible(document.visibilityState === "visible")),
  );
  window.addEventListener("online", () => each((one) => one.reconnect()));
  window.addEventListener("pageshow", () => each((one) => one.reconnect()));
  // A page in the back/forward cache with an open socket would not be cached.
  window.addEventListener("pagehide", () => each((one) => one.close()));
}
