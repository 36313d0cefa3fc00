import type {
  ActionRequired,
  ChatErrorView,
  MessageView,
  QueuedMessageView,
  RetryView,
  StreamEvent as WireEvent,
} from "@/api/types.gen";

export type Message = MessageView;
export type Part = MessageView["content"][number];
export type TextPart = Extract<Part, { type: "text" }>;
export type ReasoningPart = Extract<Part, { type: "reasoning" }>;
export type CallPart = Extract<Part, { type: "tool-call" }>;
export type ResultPart = Extract<Part, { type: "tool-result" }>;
export type SourcePart = Extract<Part, { type: "source" }>;
export type FilePart = Extract<Part, { type: "file" }>;
export type NoticePart = Extract<Part, { type: "agent-notice" }>;
export type ReferencePart = Extract<Part, { type: "file-reference" }>;

export type Queued = QueuedMessageView;
export type ChatError = ChatErrorView;
export type Retry = RetryView;
export type Action = ActionRequired;
export type StreamEvent = WireEvent;
export type Status = "waiting" | "running" | "interrupting" | "requires_action" | "error";

/** Return whether a turn is in progress. */
export function isActive(status: Status): boolean {
  return status === "running" || status === "interrupting" || status === "requires_action";
}

/** Whether tool calls ask first, follow the approval rules, or may only read. */
export type PermissionMode = "ask" | "auto" | "read_only";

/** Return the mode of a chat. Modes of a newer server are shown as the strictest one that asks. */
export function permissionModeOf(chat: { permission_mode: string } | undefined): PermissionMode {
  const mode = chat?.permission_mode ?? "auto";
  return mode === "auto" || mode === "read_only" ? mode : "ask";
}
