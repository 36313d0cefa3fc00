/** Short builders for the events of a chat's stream. */
import type { Message, Part, Status, StreamEvent } from "@/chat/types";

export const AT = "2026-01-01T10:00:00.000Z";

export function message(id: number, role: string, content: Part[], more: Partial<Message> = {}): Message {
  return {
    id,
    chat_id: "c",
    role,
    content,
    created_at: AT,
    created_by: null,
    model_config_id: null,
    reasoning_effort: null,
    client_id: null,
    usage: null,
    context_tokens: null,
    finish_reason: null,
    cost_micros: null,
    runtime_ms: null,
    ...more,
  };
}

export const say = (text: string): Part => ({ type: "text", text });

export const hello = (serverTime = AT) => ({ type: "hello", chat_id: "c", server_time: serverTime, replica_id: "r" });
export const status = (now: Status) => ({ type: "status", status: now, archived: false });
export const messages = (...all: Message[]) => all.map((one) => ({ type: "message", message: one }));
export const synced = (version: number, last = 0) => ({
  type: "synced",
  snapshot_version: version,
  history_version: version,
  queue_version: version,
  last_message_id: last,
});
export const begins = (version: number) =>
  ({ type: "preview_reset", reason: "started", history_version: version, generation_attempt: 1 }) as unknown;
/** Return the events of a committed step: its messages, and the end of its preview. */
export const stored = (version: number, ...all: Message[]) => [
  ...messages(...all),
  { type: "preview_reset", reason: "ended", history_version: version, generation_attempt: 1 },
  synced(version, all.at(-1)?.id),
];
export const part = (seq: number, one: Part) =>
  ({ type: "message_part", seq, n: 1, part: one }) as unknown as StreamEvent;
