/** Return what the agent is doing, in one word. The first matching phase is used. */

import { shownBlocks } from "@/chat/preview";
import type { ChatData } from "@/chat/reducer";
import { isActive, type Status } from "@/chat/types";

export type Phase =
  | "stopping"
  | "retrying"
  | "failed"
  | "reconnecting"
  | "needs_you"
  | "waiting_for_slot"
  | "streaming"
  | "tools"
  | "thinking"
  | "idle";

export interface PhaseInput {
  status: Status;
  data: Pick<ChatData, "retry" | "error" | "preview" | "messages" | "order">;
  isLive: boolean;
  queuedForCapacity: boolean;
}

export function phaseOf({ status, data, isLive, queuedForCapacity }: PhaseInput): Phase {
  if (status === "interrupting") return "stopping";
  if (data.retry) return "retrying";
  if (status === "error") return "failed";
  if (!isLive && isActive(status)) return "reconnecting";
  if (status === "requires_action") return "needs_you";
  if (status !== "running") return "idle";
  if (queuedForCapacity) return "waiting_for_slot";
  if (data.preview && shownBlocks(data.preview).length > 0) return "streaming";
  return hasOpenCalls(data) ? "tools" : "thinking";
}

/** Return whether calls of the last step have no result yet. Their cards show that they run. */
function hasOpenCalls({ messages, order }: Pick<ChatData, "messages" | "order">): boolean {
  const last = messages.get(order.at(-1) ?? 0);
  return (
    last?.role === "assistant" && last.content.some((part) => part.type === "tool-call" && !part.provider_executed)
  );
}
