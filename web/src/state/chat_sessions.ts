/** The sessions of open chats, and of those that were open last, so that they can be shown again at once. */
import { dropEarly } from "@/api/http";
import { ChatSession } from "@/state/chat_session";

// Chosen: some chats, each with a few subagents.
const KEPT = 12;
const sessions = new Map<string, ChatSession>();

export function chatSession(id: string): ChatSession {
  const known = sessions.get(id) ?? new ChatSession(id);
  sessions.delete(id);
  sessions.set(id, known);
  for (const [other, session] of sessions) {
    if (sessions.size <= KEPT) break;
    if (session.isNeeded || other === id) continue;
    session.close();
    sessions.delete(other);
  }
  return known;
}

/** Drop one session, or all of them after a sign-out. */
export function forgetSession(id?: string): void {
  for (const [other, session] of sessions) {
    if (id !== undefined && other !== id) continue;
    session.close();
    sessions.delete(other);
  }
}

/** Reconnect all sessions after the user has signed in again. */
export function reconnectSessions(): void {
  for (const session of sessions.values()) session.reconnect();
}

// Longer than the start of the page takes. After that, the component that shows the chat keeps it open.
const AHEAD_MS = 10_000;

/** Open the chat of the current URL before the first render, because theme.js has already requested it. */
export function openAhead(): void {
  const id = /^\/c\/([0-9a-f-]{36})$/.exec(location.pathname)?.[1];
  const end = id ? chatSession(id).open() : null;
  setTimeout(() => {
    end?.();
    dropEarly();
  }, AHEAD_MS);
}

/** Pause and resume the sessions when the tab is hidden and shown. Called once, at the start. */
export function followPage(): void {
  const each = (act: (session: ChatSession) => void) => {
    for (const session of sessions.values()) act(session);
  };
  document.addEventListener("visibilitychange", () =>
    each((one) => one.visible(document.visibilityState === "visible")),
  );
  window.addEventListener("online", () => each((one) => one.reconnect()));
  window.addEventListener("pageshow", () => each((one) => one.reconnect()));
  // Closed, because the browser does not keep pages with an open socket in the back/forward cache.
  window.addEventListener("pagehide", () => each((one) => one.close()));
}
