import { describe, expect, test } from "vitest";
import { newTool, type ToolView } from "@/chat/preview";
import {
  badExitOf,
  closedBecause,
  commandOf,
  diffCounts,
  duration,
  firstProblem,
  groupTook,
  isGroupable,
  labelOf,
  stateOf,
  summaryOf,
  words,
} from "./tool_texts";

const call = (name: string, more: Partial<ToolView> = {}): ToolView => ({
  ...newTool("id", name),
  argsDone: true,
  ...more,
});
const done = (name: string, result: unknown, args: unknown = {}) => call(name, { args, result, hasResult: true });

describe("states", () => {
  test.each([
    ["preparing", call("execute", { argsDone: false }), true],
    ["running", call("execute"), true],
    ["streaming", call("execute", { output: "x" }), true],
    ["lost", call("execute"), false],
    ["done", done("execute", { success: true }), false],
    ["background", done("execute", { background_process_id: "p" }), false],
    ["limit", done("advisor", { type: "limit_reached" }), false],
    ["failed", { ...done("execute", "no"), isError: true }, false],
    ["stopped", { ...done("execute", { reason: "interrupted_by_user" }), isError: true }, false],
  ] as const)("%s", (state, view, active) => {
    expect(stateOf(view, active)).toBe(state);
  });

  test("nothing runs once its turn is over", () => {
    for (const view of [call("execute"), call("execute", { output: "x" }), call("execute", { argsDone: false })]) {
      expect(stateOf(view, false)).toBe("lost");
    }
  });
});

describe("problems of a group", () => {
  test.each([
    [null, done("execute", { exit_code: 0 })],
    [2, done("execute", { exit_code: 2 })],
    [1, done("process_output", { exit_code: 1 })],
    [null, done("process_output", { exit_code: 1, running: true })],
    [null, done("execute", { exit_code: -1, background_process_id: "p" })],
    [null, done("read_file", { exit_code: 1 })],
    [null, done("execute", "exit_code")],
  ] as const)("exit %s", (exit, view) => {
    expect(badExitOf(view)).toBe(exit);
  });

  test("a failed call comes before a command with a bad exit, and that before nothing", () => {
    const calls = [done("execute", { exit_code: 0 }), done("execute", { exit_code: 1 }), done("read_file", "no")];
    expect(firstProblem(calls, ["done", "done", "failed"])).toBe(calls[2]);
    expect(firstProblem(calls, ["done", "done", "done"])).toBe(calls[1]);
    expect(firstProblem(calls.slice(0, 1), ["done"])).toBeNull();
    expect(firstProblem(calls.slice(0, 2), ["done", "stopped"])).toBeNull();
  });
});

test("a stopped call says why", () => {
  expect(closedBecause({ ...done("x", { reason: "message_edited" }), isError: true })).toBe("Removed by edit");
  expect(closedBecause({ ...done("x", { reason: "whatever" }), isError: true })).toBeNull();
  expect(closedBecause(done("x", { reason: "interrupted" }))).toBeNull();
});

test("labels follow the state", () => {
  const read = call("read_file", { args: { path: "/a/b.py" } });
  expect(labelOf(read, "running")).toBe("Reading b.py");
  expect(labelOf(call("execute", { args: { command: "ls" } }), "needs_you")).toBe("Asks to run ls");
  expect(labelOf(done("read_file", { lines_read: 10, total_lines: 90 }, { path: "/a/b.py", offset: 5 }), "done")).toBe(
    "Read b.py (lines 5-14)",
  );
  expect(labelOf(done("edit_files", { files: [{ path: "/x/a" }, { path: "/x/b" }] }), "done")).toBe("Edited 2 files");
  expect(labelOf(call("execute", { args: { command: "ls", model_intent: "Look around" } }), "running")).toBe(
    "Look around",
  );
  expect(words("github__create_issue")).toBe("github: create issue");
});

test("labels of commands drop nothing", () => {
  const parsedCommands = [["rm", "hello.txt"]];
  const remove = call("execute", { args: { command: "rm -rf hello.txt", model_intent: "Tidy up" }, parsedCommands });
  expect(labelOf(remove, "needs_you")).toBe("Asks to run rm -rf hello.txt");
  expect(labelOf({ ...remove, hasResult: true }, "denied")).toBe("Denied: rm -rf hello.txt");
  const tests = call("execute", {
    args: { command: "python3 -m unittest" },
    parsedCommands: [["python3", "unittest"]],
  });
  expect(labelOf(tests, "done")).toBe("Ran python3 -m unittest");
  const stopped = { ...done("execute", { wall_duration_ms: 9000 }, { command: "sleep 15" }), isError: true };
  expect(labelOf(stopped, "stopped")).toBe("Began sleep 15");
  expect(commandOf(call("execute", { args: { command: "echo a > b && cat b" } }))).toBe("echo a > b && cat b");
  expect(commandOf(call("execute", { args: { command: "cd a\nmake" } }))).toBe("cd a…");
});

test("half-arrived arguments of any shape give a label", () => {
  for (const args of [undefined, null, "text", [], { path: 3 }, { files: "no" }, { files: [null] }]) {
    for (const name of ["execute", "read_file", "edit_files", "create_workspace", "spawn_agent", "list_agents"]) {
      expect(typeof labelOf(call(name, { args, argsDone: false }), "preparing")).toBe("string");
      expect(typeof labelOf(done(name, args, args), "done")).toBe("string");
    }
  }
});

test("many calls are one line", () => {
  const calls = [
    ...Array.from({ length: 8 }, () => done("read_file", {})),
    done("edit_files", {}, { files: [{}, {}] }),
    done("execute", {}),
    done("github__x", {}),
  ];
  expect(summaryOf(calls)).toBe("Read 8 files, edited 2 files, ran 1 command, used 1 tool");
});

test("times and counts", () => {
  expect([0, 940, 3200, 41_000, 125_000, 3_720_000].map(duration)).toEqual([
    "0 s",
    "0.9 s",
    "3.2 s",
    "41 s",
    "2 min 5 s",
    "1 h 2 min",
  ]);
  expect(diffCounts("--- a\n+++ b\n@@\n-x\n+y\n+z\n")).toEqual({ added: 2, removed: 1 });
  expect(
    groupTook([
      call("a", { startedAt: "2026-01-01T00:00:00Z", endedAt: "2026-01-01T00:00:02Z" }),
      call("b", { startedAt: "2026-01-01T00:00:01Z", endedAt: "2026-01-01T00:00:09Z" }),
    ]),
  ).toBe(9000);
  expect(commandOf(call("execute", { args: { command: `echo ${"x".repeat(200)}` } })).length).toBe(80);
});

test("calls about agents are never grouped, and a wait that timed out is not failed", () => {
  for (const name of ["spawn_agent", "wait_agent", "list_agents", "read_agent_report", "advisor"]) {
    expect(isGroupable(call(name))).toBe(false);
  }
  const one = { chat_id: "a", title: "callers", status: "waiting" };
  expect(labelOf(call("wait_agent", { args: { chat_ids: ["a", "b"] } }), "running")).toBe("Waiting for 2 agents");
  expect(labelOf(done("wait_agent", one), "done")).toBe("Waited for callers");
  const late = done("wait_agent", { agents: [one, { ...one, timed_out: true }] });
  expect(stateOf(late, false)).toBe("done");
  expect(labelOf(late, "done")).toBe("Waited for 2 agents, 1 still working");
  expect(labelOf(done("wait_agent", { ...one, timed_out: true }), "done")).toBe("Waited for callers, still working");
  expect(labelOf(done("interrupt_agent", { ...one, interrupted: false }), "done")).toBe("callers was at rest already");
});

test("calls about one agent name it before they have a result", () => {
  const titleOf = (id: string) => (id === "a" ? "callers" : "");
  const running = (name: string, args: object) => labelOf(call(name, { args }), "running", titleOf);
  expect(running("wait_agent", { chat_id: "a" })).toBe("Waiting for callers");
  expect(running("wait_agent", { chat_ids: ["a"] })).toBe("Waiting for callers");
  expect(running("wait_agent", { chat_ids: ["a", "b"] })).toBe("Waiting for 2 agents");
  expect(running("message_agent", { chat_id: "a" })).toBe("Messaging callers");
  expect(running("message_agent", { chat_id: "b" })).toBe("Messaging an agent");
});

test("a call that did not happen does not say that it did", () => {
  expect(labelOf(call("advisor", { args: { model_intent: "Check the lock" } }), "running")).toBe(
    "Consulting the advisor: Check the lock",
  );
  expect(labelOf(done("advisor", { type: "advice" }), "done")).toBe("Consulted the advisor");
  for (const state of ["failed", "stopped", "limit"] as const) {
    expect(labelOf(done("advisor", {}), state)).toBe("Could not consult the advisor");
  }
  expect(labelOf(done("list_agents", {}), "failed")).toBe("Could not list agents");
  expect(labelOf(done("list_subagent_models", {}), "stopped")).toBe("Could not list models");
});
