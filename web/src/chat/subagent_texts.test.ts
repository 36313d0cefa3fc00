import { expect, test } from "vitest";
import type { AgentView } from "@/api/types.gen";
import { agentState, agentTime, noticeTitle, toldState } from "./subagent_texts";

const AGENT: AgentView = {
  chat_id: "child",
  parent_chat_id: "root",
  tool_call_id: "t",
  title: "callers",
  kind: "explore",
  kind_source: "builtin",
  status: "running",
  phase: "tool",
  stalled: false,
  silent_seconds: 2,
  activity: "execute",
  outcome: null,
  model_config_id: "m",
  reasoning_effort: null,
  created_at: "2026-01-05T10:00:00Z",
  updated_at: "2026-01-05T10:01:00Z",
  running_since: "2026-01-05T10:00:30Z",
  deadline_at: null,
  steps: 1,
  tokens: 0,
  cost_micros: 0,
  unpriced_request_count: 0,
  budget_micros: null,
};

test.each([
  [{}, "Running a tool", "busy"],
  [{ phase: "model" }, "Waiting for the model", "busy"],
  [{ phase: "queued" }, "Waiting for a slot", "busy"],
  [{ phase: null }, "Working", "busy"],
  [{ phase: "constructor" }, "Working", "busy"],
  [{ status: "requires_action", phase: "approval", stalled: true }, "Waiting for approval", "needs_you"],
  [{ stalled: true, silent_seconds: 660 }, "No progress for 11 min (running a tool)", "warn"],
  [{ status: "interrupting" }, "Stopping", "busy"],
  [{ status: "waiting", outcome: "finished" }, "Finished", "ok"],
  [{ status: "waiting", outcome: "interrupted" }, "Stopped", "muted"],
  [{ status: "error", outcome: "error" }, "Failed", "danger"],
  [{ status: "waiting", outcome: "deadline" }, "Reached its time limit", "warn"],
  [{ status: "waiting" }, "At rest", "muted"],
] as const)("state of %o", (more, text, tone) => {
  expect(agentState({ ...AGENT, ...more })).toEqual({ text, tone });
});

test("a wait that timed out is not failed", () => {
  expect(toldState({ status: "running", phase: "model", timed_out: true }).tone).toBe("busy");
  expect(toldState({ status: "waiting", end_id: 1, report: "x" }).tone).toBe("ok");
  expect(toldState({ status: "waiting", end_id: 1, interrupted: true }).text).toBe("Stopped");
  expect(toldState({ status: "waiting" }).text).toBe("At rest");
  expect(toldState({ status: "waiting", last_error_kind: "deadline" }).text).toBe("Reached its time limit");
  expect(toldState({ status: "error", last_error_kind: "overloaded" }).tone).toBe("danger");
});

test("the time at work, and the whole time at rest", () => {
  expect(agentTime(AGENT, Date.parse("2026-01-05T10:00:40Z"))).toBe(10_000);
  expect(agentTime({ ...AGENT, status: "waiting" }, 0)).toBe(60_000);
});

test("a notice names the agent and its end", () => {
  const notice = {
    type: "agent-notice",
    chat_id: "c",
    title: "callers",
    kind: "explore",
    outcome: "deadline",
  } as const;
  expect(noticeTitle(notice)).toBe("Agent “callers” reached its time limit");
  expect(noticeTitle({ ...notice, outcome: "new" })).toBe("Agent “callers” ended");
});
