import { useStore } from "zustand";
import { chatSession } from "@/state/chat_sessions";
import { cx } from "@/ui/cx";
import { Tooltip } from "@/ui/tooltip";

const NAMES = {
  live: "Live: changes arrive as they happen",
  connecting: "Connecting",
  backoff: "Offline, trying again",
  stopped: "Not connected",
} as const;

/** The connection state of a chat: a filled dot while connected, else a hollow one. */
export function LiveDot({ chatId }: { chatId: string }) {
  const phase = useStore(chatSession(chatId).store, (state) => state.conn.phase);
  return (
    <Tooltip text={NAMES[phase]} side="bottom">
      <span
        role="img"
        aria-label={NAMES[phase]}
        className={cx("size-2 shrink-0 rounded-full border", phase === "live" ? "border-ok bg-ok" : "border-warn")}
      />
    </Tooltip>
  );
}
