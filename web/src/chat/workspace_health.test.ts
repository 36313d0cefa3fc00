import { expect, test } from "vitest";
import { reasonOf, stateOf } from "@/chat/workspace_health";

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
