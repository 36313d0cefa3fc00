import { expect, test } from "vitest";
import {
  describe as describeWorkspace,
  isStartingUp,
  reasonOf,
  startupProblem,
  stateOf,
} from "@/chat/workspace_health";

test("a workspace that runs but does not answer is unreachable, with its reason", () => {
  const cut = { status: "running", agent_state: "unreachable", error: "Its agent sent too many bytes." };

  expect(stateOf(cut)).toBe("unreachable");
  expect(reasonOf(cut)).toBe("Its agent sent too many bytes.");
  expect(reasonOf({ ...cut, error: null })).toBe("Its agent does not answer.");
});

test("a failure has its reason, and what works or is stopped has none", () => {
  expect(reasonOf({ status: "failed", agent_state: "unreachable", error: "The script ended." })).toBe(
    "The script ended.",
  );
  expect(reasonOf({ status: "running", agent_state: "ready", error: "An old one." })).toBeNull();
  expect(stateOf({ status: "stopped", agent_state: "unreachable" })).toBe("stopped");
});

test("sentence about a named workspace says what failed and why", () => {
  const named = { name: "amber-otter" };
  const failed = { ...named, status: "failed", error: "bubblewrap is not installed." };
  expect(describeWorkspace(failed)).toBe("amber-otter failed to start: bubblewrap is not installed.");
  expect(describeWorkspace({ ...failed, error_code: "agent_exited" })).toMatch(/^amber-otter stopped working: /);
  expect(describeWorkspace({ ...named, status: "failed" })).toBe("amber-otter failed to start.");
  expect(describeWorkspace({ ...named, status: "stopped" })).toBe("amber-otter is stopped.");
  expect(describeWorkspace({ ...named, status: "running", agent_state: "unreachable" })).toMatch(/cannot be reached/);
});

test("a startup script that failed or took too long is a problem of a running workspace only", () => {
  const failed = { status: "running", agent_state: "script_failed", startup_exit_code: 128 };

  expect(startupProblem(failed)).toBe("Its startup script failed with exit code 128.");
  expect(startupProblem({ ...failed, agent_state: "script_timeout" })).toMatch(/took too long/);
  expect(startupProblem({ ...failed, status: "stopped" })).toBeNull();
  expect(startupProblem({ ...failed, agent_state: "ready" })).toBeNull();
  expect(isStartingUp({ status: "running", agent_state: "starting" })).toBe(true);
  expect(isStartingUp({ status: "pending" })).toBe(true);
  expect(isStartingUp(failed)).toBe(false);
});
