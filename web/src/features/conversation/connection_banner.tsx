import { WifiOff } from "lucide-react";
import { useStore } from "zustand";
import { isActive } from "@/chat/types";
import type { ChatSession } from "@/state/chat_session";
import { useNow } from "@/state/session_hooks";
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
