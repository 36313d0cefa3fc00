import { expect, test } from "vitest";
import { appendPart, type Block, newTool, withLive } from "@/chat/preview";
import type { Message, Part } from "@/chat/types";
import { liveRows, namesAfter, type Row, RowMaker, type RowOptions, storedCalls } from "./timeline_rows";

const OPTIONS: RowOptions = { grouped: true, dayOf: (at) => at.slice(0, 10) };
const AT = "2026-01-01T10:00:00Z";

function message(id: number, role: string, content: Part[], more: Partial<Message> = {}): Message {
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
const say = (text: string): Part => ({ type: "text", text });
const think = (text: string): Part => ({ type: "reasoning", text });
const call = (id: string, name = "read_file"): Part => ({
  type: "tool-call",
  tool_call_id: id,
  tool_name: name,
  args: { path: "/a" },
});
const result = (id: string, name = "read_file"): Part => ({
  type: "tool-result",
  tool_call_id: id,
  tool_name: name,
  result: { ok: true },
});

const kinds = (rows: Row[]) => rows.map((row) => row.kind);
const make = (messages: Message[], active = false) => new RowMaker().make(messages, active, OPTIONS);

const TURN = [
  message(1, "user", [say("go")]),
  message(2, "assistant", [think("hm"), call("a"), call("b")]),
  message(3, "tool", [result("a")]),
  message(4, "tool", [result("b")]),
  message(5, "assistant", [say("done")]),
];

test("results join their calls, and calls without words between them are one group", () => {
  const rows = make(TURN);
  expect(kinds(rows)).toEqual(["day", "user", "reasoning", "group", "prose", "footer"]);
  const group = rows[3];
  expect(group?.kind === "group" && group.items.every((item) => item.kind === "tool" && item.call.hasResult)).toBe(
    true,
  );
});

test("thoughts between calls stay in the group, those after the last one do not", () => {
  const rows = make(
    [message(1, "user", [say("go")]), message(2, "assistant", [call("a"), think("hm"), call("b"), think("so")])],
    true,
  );
  expect(kinds(rows)).toEqual(["day", "user", "group", "reasoning"]);
  expect(rows[2]?.kind === "group" && rows[2].items.map((item) => item.kind)).toEqual(["tool", "reasoning", "tool"]);
});

test("questions, plans and workspaces are never folded away", () => {
  const rows = make([
    message(1, "user", [say("go")]),
    message(2, "assistant", [call("a"), call("q", "ask_user_question"), call("b"), call("w", "create_workspace")]),
  ]);
  expect(kinds(rows)).toEqual(["day", "user", "tool", "tool", "tool", "tool", "footer"]);
});

test("a group keeps its key when calls join at its end", () => {
  const before = make(TURN.slice(0, 4), true).find((row) => row.kind === "group");
  const after = make([...TURN.slice(0, 4), message(5, "assistant", [call("c")])], true).find(
    (row) => row.kind === "group",
  );
  expect(before?.key).toBeDefined();
  expect(after?.key).toBe(before?.key);
});

test("rows that did not change keep their identity under append and prepend", () => {
  const maker = new RowMaker();
  const first = maker.make(TURN, false, OPTIONS);
  const appended = maker.make([...TURN, message(6, "user", [say("more")])], true, OPTIONS);
  const again = new Set<unknown>(appended);
  expect(first.filter((row) => row.kind !== "tool").every((row) => again.has(row))).toBe(true);

  const prepended = new Set<unknown>(maker.make([message(0, "user", [say("old")]), ...TURN], false, OPTIONS));
  expect(first.filter((row) => row.kind !== "day" && row.kind !== "user").every((row) => prepended.has(row))).toBe(
    true,
  );
});

test("keys are unique", () => {
  const rows = make([
    ...TURN,
    message(6, "user", [say("x")]),
    message(7, "assistant", [say("a"), say("b"), { type: "file", file_id: "f" }]),
  ]);
  expect(new Set(rows.map((row) => row.key)).size).toBe(rows.length);
});

test("an interrupted turn says so once it is over", () => {
  const stopped = [
    message(1, "user", [say("go")]),
    message(2, "assistant", [say("half")], { finish_reason: "interrupted" }),
  ];
  expect(kinds(make(stopped))).toContain("interrupted");
  expect(kinds(make(stopped, true))).not.toContain("interrupted");
});

const stop = (id: string, reason = "interrupted"): Part => ({
  type: "tool-result",
  tool_call_id: id,
  tool_name: "execute",
  is_error: true,
  result: { error: "Stopped by the user after 43 s.", reason, output: "one" },
});
const end = (outcome: string, kind?: string): Part => ({
  type: "turn-end",
  outcome,
  ...(kind ? { kind, message: "Too many requests." } : {}),
});

test.each(["interrupted", "interrupted_by_user", "interrupted_by_message"])(
  "a turn that was stopped while a tool ran says so once: %s",
  (reason) => {
    const rows = make([
      message(1, "user", [say("go")]),
      message(2, "assistant", [call("a", "execute"), call("b", "execute")]),
      message(3, "tool", [stop("a", reason)]),
      message(4, "tool", [stop("b", reason)]),
      message(5, "user", [say("and now")]),
    ]);
    expect(kinds(rows)).toEqual(["day", "user", "group", "interrupted", "footer", "user"]);
  },
);

test("a turn that was stopped before an answer says so, and only the newest one offers to try again", () => {
  const stopped = [message(1, "user", [say("go")]), message(2, "system", [end("stopped")])];
  const mark = (rows: Row[]) => rows.find((row) => row.kind === "interrupted");
  expect(mark(make(stopped))).toMatchObject({ next: "retry", latest: true });
  expect(mark(make([...stopped, message(3, "user", [say("again")])]))).toMatchObject({ latest: false });
  const answered = make([...stopped, message(3, "assistant", [say("answer")])]);
  expect(kinds(answered)).toEqual(["day", "user", "interrupted", "prose", "footer"]);
  expect(mark(answered)).toMatchObject({ latest: false });
});

test("a failed turn leaves a mark, which the card of the current error replaces", () => {
  const failed = [message(1, "user", [say("go")]), message(2, "system", [end("failed", "rate_limit")])];
  const shown = (messages: Message[], isFailed: boolean) =>
    kinds(new RowMaker().make(messages, false, { ...OPTIONS, isFailed }));
  expect(shown(failed, true)).toEqual(["day", "user"]);
  expect(shown(failed, false)).toEqual(["day", "user", "failed"]);
  const again = [...failed, message(3, "system", [end("failed", "timeout")])];
  expect(shown(again, true)).toEqual(["day", "user", "failed"]);
  expect(shown([...failed, message(3, "user", [say("next")])], true)).toEqual(["day", "user", "failed", "user"]);
});

test("a summary is a rule across the column, and prompts above it are out of context", () => {
  const rows = make([
    ...TURN,
    message(6, "assistant", [call("s", "chat_summarized")]),
    message(7, "tool", [result("s", "chat_summarized")]),
    message(8, "user", [say("next")]),
  ]);
  expect(kinds(rows)).toContain("compaction");
  expect(rows.flatMap((row) => (row.kind === "user" ? [row.inContext] : []))).toEqual([false, true]);
});

test("what cannot be read or shown is said, not dropped", () => {
  const rows = make([
    message(1, "user", [say("x")]),
    message(2, "assistant", [{ type: "hologram" } as unknown as Part]),
    message(3, "assistant", [], { decode_error: true }),
  ]);
  expect(kinds(rows)).toEqual(["day", "user", "unknown", "notice", "footer"]);
});

test("what the server says to people is a notice, not an answer", () => {
  const rows = make([
    message(1, "user", [say("x")]),
    message(2, "system", [say("The step limit is reached.")]),
    message(3, "assistant", [say("Done.")]),
  ]);
  expect(kinds(rows)).toEqual(["day", "user", "notice", "prose", "footer"]);
});

test("live parts become the rows that are stored later", () => {
  let blocks: readonly Block[] = [];
  for (const part of [
    think("hm"),
    { type: "tool-call", tool_call_id: "a", tool_name: "read_file", args_delta: '{"path":"/a' } as Part,
    call("a"),
    call("b"),
    result("a"),
    say("d"),
    say("one"),
  ]) {
    blocks = appendPart(blocks, part, () => AT);
  }
  expect(kinds(liveRows(blocks, true, namesAfter(TURN.slice(0, 1))))).toEqual(["reasoning", "group", "prose"]);
  expect(liveRows(blocks, true, namesAfter(TURN.slice(0, 1))).every((row) => row.key.startsWith("live:"))).toBe(true);
});

test("what arrives for a stored call belongs to its card and to no row of its own", () => {
  expect([...storedCalls(TURN)].sort()).toEqual(["a", "b"]);
  expect(storedCalls([...TURN, message(6, "user", [say("next")])]).size).toBe(0);

  const stored = { ...newTool("a", "execute"), args: { command: "ls" }, argsDone: true };
  const live = { ...newTool("a", "execute"), output: "file" };
  expect(withLive(stored, live)).toMatchObject({ args: { command: "ls" }, output: "file", hasResult: false });
  const over = { ...stored, hasResult: true };
  expect(withLive(over, live)).toBe(over);
});

const ended = (outcome = "finished"): Part => ({
  type: "agent-notice",
  chat_id: "child",
  title: "callers",
  kind: "explore",
  outcome,
  report: "3 callers",
});

test("a notice of a subagent is a card, never a bubble of the user", () => {
  const rows = new RowMaker().make(
    [
      message(1, "user", [say("go")]),
      message(2, "assistant", [say("started")]),
      message(3, "user", [ended(), ended("error")]),
      message(4, "assistant", [say("thanks")]),
    ],
    false,
    OPTIONS,
  );
  expect(rows.map((row) => row.kind)).toEqual(["day", "user", "prose", "footer", "agent", "agent", "prose", "footer"]);
  expect(rows.filter((row) => row.kind === "agent").map((row) => row.key)).toEqual(["m3:0", "m3:1"]);
});

test("a notice between two steps stays inside the running turn", () => {
  const held = [
    message(1, "user", [say("go")]),
    message(2, "assistant", [call("a")]),
    message(3, "tool", [result("a")]),
    message(4, "user", [ended()]),
    message(5, "assistant", [think("hm"), say("done")]),
  ];
  const rows = new RowMaker().make(held, false, OPTIONS);
  expect(rows.map((row) => row.kind)).toEqual(["day", "user", "tool", "agent", "reasoning", "prose", "footer"]);
  const thought = rows.find((row) => row.kind === "reasoning");
  expect(thought?.kind === "reasoning" && thought.liveId).toBe(namesAfter(held.slice(0, 4)).next());
});

test("a message between two steps of a turn is marked as steered, one after its end is not", () => {
  const rows = new RowMaker().make([...TURN, message(20, "user", [say("next")])], true, OPTIONS);
  const steering = [
    message(1, "user", [say("go")]),
    message(2, "assistant", [call("a")]),
    message(3, "tool", [result("a")]),
    message(4, "user", [say("rather so")]),
  ];
  const marks = (made: Row[]) => made.flatMap((row) => (row.kind === "user" ? [row.steered] : []));
  expect(marks(rows)).toEqual([false, false]);
  expect(marks(new RowMaker().make(steering, true, OPTIONS))).toEqual([false, true]);
});
