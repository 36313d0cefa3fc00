import { expect, test } from "vitest";
import { errorCard, offeredActions } from "./turn_errors";

// The actions offered for each kind of error.
test.each([
  ["overloaded", "Provider overloaded", ["retry", "switch_model"]],
  ["rate_limit", "Rate limited", ["retry", "switch_model"]],
  ["timeout", "Timed out", ["retry", "switch_model"]],
  ["stream_silence_timeout", "Answer stalled", ["retry", "switch_model"]],
  ["generic", "Request failed", ["retry", "switch_model"]],
  ["auth", "Key refused", ["retry", "switch_model", "own_key", "provider"]],
  ["missing_key", "No key", ["retry", "switch_model", "own_key", "provider"]],
  ["provider_disabled", "Provider off", ["retry", "switch_model", "own_key", "provider"]],
  ["config", "Configuration", ["retry", "switch_model", "own_key", "provider"]],
  ["usage_limit", "Limit reached", ["retry", "usage", "limit"]],
  ["budget", "Budget used up", ["usage"]],
  ["content_filter", "Answer blocked", ["edit", "retry", "switch_model"]],
  ["invalid_tool_call", "Invalid tool call", ["retry", "switch_model"]],
  ["hook_denied", "Blocked by policy", ["edit", "retry"]],
  ["hook_dispatch_failed", "Policy check failed", ["retry"]],
  ["chat_invalid_state", "This chat needs repair", ["repair"]],
  ["something_new", "Request failed", ["retry", "switch_model"]],
  ["constructor", "Request failed", ["retry", "switch_model"]],
])("%s is told as %s", (kind, title, actions) => {
  expect(errorCard({ kind, message: "No." })).toEqual({ title, actions });
});

test("a context that overflowed can be compacted", () => {
  const card = errorCard({ kind: "config", message: "maximum context length is 8192 tokens" });
  expect(card).toEqual({ title: "Too long for this model", actions: ["compact", "switch_model"] });
});

test("a context that overflowed has a kind of its own as well", () => {
  expect(errorCard({ kind: "context_overflow", message: "No." }).actions).toEqual(["compact", "switch_model"]);
});

test("what is offered is what this person can do", () => {
  const owner = { mayAct: true, isAdmin: false, hasPrompt: true };
  const of = (kind: string, who: Partial<typeof owner>) =>
    offeredActions({ kind, message: "No." }, { ...owner, ...who });
  expect(of("auth", {})).toEqual(["retry", "switch_model", "own_key"]);
  expect(of("auth", { isAdmin: true })).toEqual(["retry", "switch_model", "own_key", "provider"]);
  expect(of("usage_limit", {})).toEqual(["retry", "usage"]);
  expect(of("usage_limit", { isAdmin: true })).toEqual(["retry", "usage", "limit"]);
  expect(of("content_filter", {})).toEqual(["edit", "retry", "switch_model"]);
  expect(of("content_filter", { hasPrompt: false })).toEqual(["retry", "switch_model"]);
  // Readers, and owners of archived chats, have no actions.
  for (const kind of ["generic", "auth", "usage_limit", "hook_denied", "chat_invalid_state"]) {
    expect(of(kind, { mayAct: false, isAdmin: true })).toEqual([]);
  }
});
