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

/** The seconds of silence after which the user can ask for another try. */
export const NUDGE_SECONDS = 30;
// Shorter silences are usual while an answer or an output arrives.
const QUIET_SECONDS = 5;
const QUIET_OUTPUT_SECONDS = 10;

/** Return what the running turn waits for, as a sentence, and for how many seconds. `now` is the time of this page. */
export function silenceOf(data: ChatData, now: number): { text: string; seconds: number } {
  const last = data.messages.get(data.order.at(-1) ?? 0);
  const committed = last?.created_at ? Date.parse(last.created_at) - data.clockSkew : now;
  const stored = Math.max(committed, data.preview?.since ?? 0);
  const heard = data.preview?.stale ? 0 : (data.preview?.heardAt ?? 0);
  const seconds = Math.max(0, Math.floor((now - Math.max(stored, heard)) / 1000));
  const age = seconds > 0 ? `, ${seconds} s` : "";
  if (hasOpenCalls(data)) {
    const isQuiet = heard > stored && seconds >= QUIET_OUTPUT_SECONDS;
    const working = heard > stored ? "Running a tool" : `Waiting for the tool${age}`;
    return { text: isQuiet ? `No output for ${seconds} s` : working, seconds };
  }
  if (heard > stored) return { text: seconds < QUIET_SECONDS ? "Answering" : `Model silent${age}`, seconds };
  return { text: `Waiting for the model${age}`, seconds };
}
