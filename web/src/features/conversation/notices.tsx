import { WifiOff } from "lucide-react";
import { Link } from "react-router";
import { useStore } from "zustand";
import type { ChatView } from "@/api/types.gen";
import { isActive } from "@/chat/types";
import type { ChatSession } from "@/state/chat_session";
import { useNow } from "@/state/hooks";
import { Button } from "@/ui/button";

const QUIET_MS = 2_000;

/** The banner for a lost connection. Shown after a delay, and only while a turn runs or a message waits to be sent. */
export function ConnectionBanner({ session }: { session: ChatSession }) {
  const conn = useStore(session.store, (state) => state.conn);
  const matters = useStore(
    session.store,
    (state) => isActive(state.data.status) || state.pending.some((op) => op.kind === "send"),
  );
  const isLost = conn.phase === "backoff" || conn.phase === "connecting";
  const now = useNow(1000, isLost && matters);
  if (conn.phase === "stopped" && conn.ending === "refused") {
    return (
      <Banner text="The server refuses more connections.">
        <Button size="small" onClick={() => session.reconnect()}>
          Retry
        </Button>
      </Banner>
    );
  }
  if (!isLost || !matters || !conn.lostAt || now - conn.lostAt < QUIET_MS) return null;
  const seconds = Math.max(0, Math.ceil((conn.retryAt - now) / 1000));
  return (
    <Banner
      text={conn.phase === "backoff" && seconds > 0 ? `Offline. Trying again in ${seconds} s.` : "Offline. Connecting."}
    >
      <Button size="small" onClick={() => session.reconnect()}>
        Reconnect now
      </Button>
    </Banner>
  );
}

function Banner({ text, children }: { text: string; children: React.ReactNode }) {
  return (
    <div
      role="status"
      className="mb-2 flex items-center gap-2 rounded-lg border border-line bg-bg2 px-3 py-1.5 text-small"
    >
      <WifiOff aria-hidden className="size-4 text-warn" />
      <span className="flex-1">{text}</span>
      {children}
    </div>
  );
}

/** The page of a chat that was deleted or unshared while it was open. */
export function StreamEnded({ ending }: { ending: "forbidden" | "gone" }) {
  return (
    <div className="grid flex-1 place-items-center p-6 text-center">
      <div>
        <h1 className="text-[18px] font-semibold">
          {ending === "forbidden" ? "No longer shared with you" : "This chat was deleted"}
        </h1>
        <p className="mt-1 text-muted">
          {ending === "forbidden" ? "Its owner ended the sharing." : "It cannot be restored."}
        </p>
        <Link to="/" className="mt-4 inline-block text-accent underline">
          New chat
        </Link>
      </div>
    </div>
  );
}

interface ReadOnlyProps {
  chat: ChatView | undefined;
  isArchived: boolean;
  onUnarchive: () => void;
}

/** The text in place of the composer: why no message can be sent, and what to do. */
export function ReadOnly({ chat, isArchived, onUnarchive }: ReadOnlyProps) {
  const isOwner = chat?.my_role === "owner";
  return (
    <div className="flex items-center gap-3 rounded-2xl border border-line bg-bg2 px-4 py-3 text-muted">
      <span className="flex-1">
        {isOwner && isArchived
          ? "This chat is archived."
          : `${chat?.owner.name || chat?.owner.username || "Another user"} owns this chat. You can read it.`}
      </span>
      {isOwner && isArchived && <Button onClick={onUnarchive}>Unarchive</Button>}
    </div>
  );
}
