/** Texts and actions for failed turns. */
import type { ChatError } from "@/chat/types";

export type ErrorAction =
  | "retry"
  | "switch_model"
  | "compact"
  | "edit"
  | "usage"
  | "limit"
  | "provider"
  | "own_key"
  | "repair";

export interface ErrorCard {
  title: string;
  actions: ErrorAction[];
}

const AGAIN: ErrorAction[] = ["retry", "switch_model"];
const SETUP: ErrorAction[] = ["retry", "switch_model", "own_key", "provider"];

const CARDS: Record<string, ErrorCard> = {
  overloaded: { title: "Provider overloaded", actions: AGAIN },
  rate_limit: { title: "Rate limited", actions: AGAIN },
  timeout: { title: "Timed out", actions: AGAIN },
  stream_silence_timeout: { title: "Answer stalled", actions: AGAIN },
  generic: { title: "Request failed", actions: AGAIN },
  context_overflow: { title: "Too long for this model", actions: ["compact", "switch_model"] },
  auth: { title: "Key refused", actions: SETUP },
  missing_key: { title: "No key", actions: SETUP },
  provider_disabled: { title: "Provider off", actions: SETUP },
  config: { title: "Configuration", actions: SETUP },
  usage_limit: { title: "Limit reached", actions: ["retry", "usage", "limit"] },
  budget: { title: "Budget used up", actions: ["usage"] },
  content_filter: { title: "Answer blocked", actions: ["edit", "retry", "switch_model"] },
  invalid_tool_call: { title: "Invalid tool call", actions: AGAIN },
  hook_denied: { title: "Blocked by policy", actions: ["edit", "retry"] },
  hook_dispatch_failed: { title: "Policy check failed", actions: ["retry"] },
  chat_invalid_state: { title: "This chat needs repair", actions: ["repair"] },
};

const GENERIC: ErrorCard = { title: "Request failed", actions: AGAIN };

export function errorCard(error: ChatError): ErrorCard {
  const kind = error.kind ?? "generic";
  if (kind === "config" && /context|too long|maximum.*tokens/i.test(error.message ?? "")) {
    return CARDS.context_overflow ?? GENERIC;
  }
  return (Object.hasOwn(CARDS, kind) ? CARDS[kind] : undefined) ?? GENERIC;
}

/** The user who sees the error. */
export interface ErrorViewer {
  /** The user owns the chat, and the chat is not archived. */
  mayAct: boolean;
  isAdmin: boolean;
  /** The chat has a user message that can be edited. */
  hasPrompt: boolean;
}

/** Return the actions that this user can take. */
export function offeredActions(error: ChatError, { mayAct, isAdmin, hasPrompt }: ErrorViewer): ErrorAction[] {
  if (!mayAct) return [];
  return errorCard(error).actions.filter(
    (action) => (action !== "edit" || hasPrompt) && (isAdmin || (action !== "provider" && action !== "limit")),
  );
}
