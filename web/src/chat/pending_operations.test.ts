import { expect, test } from "vitest";
import { type ChatData, EMPTY } from "@/chat/reducer";
import type { Message, Part, Queued } from "@/chat/types";
import {
  moveInOrder,
  type PendingOp,
  type PendingSend,
  sendRows,
  settle,
  shownOrder,
  shownQueue,
  shownStatus,
} from "./pending_operations";

const parts: Part[] = [{ type: "text", text: "hi" }];
const queued = (id: number, clientId: string | null = null): Queued =>
  ({
    id,
    content: parts,
    model_config_id: null,
    reasoning_effort: null,
    client_id: clientId,
    created_at: "",
    created_by: "u",
    steer: false,
  }) as Queued;
const send = (more: Partial<PendingSend> = {}): PendingSend => ({
  kind: "send",
  id: "s1",
  content: [],
  parts,
  at: "",
  queued: false,
  body: { content: [] },
  ...more,
});
const data = (more: Partial<ChatData>): ChatData => ({ ...EMPTY, snapshot: 5, ...more });

test("a send is shown until the stream has it, by its name or by the answer's version", () => {
  const row = { id: 9, client_id: "s1" } as Message;
  expect(settle([send()], data({}))).toHaveLength(1);
  expect(settle([send()], data({ messages: new Map([[9, row]]), order: [9] }))).toEqual([]);
  expect(settle([send()], data({ queue: [queued(1, "s1")] }))).toEqual([]);
  expect(settle([send({ answered: 6 })], data({}))).toHaveLength(1);
  expect(settle([send({ answered: 5 })], data({}))).toEqual([]);
});

test("a failed send stays until the user decides, or until the stream shows that only the response was lost", () => {
  const failed = send({ failed: "No answer.", answered: 1 });
  expect(settle([failed], data({}))).toEqual([failed]);
  expect(shownStatus(data({}), [failed])).toBe("waiting");
  expect(sendRows([failed])).toHaveLength(1);
  const row = { id: 9, client_id: "s1" } as Message;
  expect(settle([failed], data({ messages: new Map([[9, row]]), order: [9] }))).toEqual([]);
});

test("a send that waits for the connection is the last row of the chat, even if it will be queued", () => {
  const waiting = send({ waits: true, queued: true });
  expect(sendRows([waiting])).toEqual([waiting]);
  expect(shownQueue(data({ status: "running" }), [waiting])).toEqual([]);
  expect(shownStatus(data({}), [send({ waits: true })])).toBe("waiting");
  const row = { id: 9, client_id: "s1" } as Message;
  expect(settle([waiting], data({ messages: new Map([[9, row]]), order: [9] }))).toEqual([]);
});

test("what is not settled keeps its identity", () => {
  const pending: PendingOp[] = [send()];
  expect(settle(pending, data({}))).toBe(pending);
});

test("the queue hides, changes and reorders at once, and is as before when an operation is gone", () => {
  const chat = data({ queue: [queued(1), queued(2), queued(3)] });
  const ids = (pending: PendingOp[]) => shownQueue(chat, pending).map((row) => row.id);
  expect(ids([{ kind: "delete", id: "d", queuedId: 2 }])).toEqual([1, 3]);
  expect(ids([{ kind: "promote", id: "p", queuedId: 1 }])).toEqual([2, 3]);
  expect(ids([{ kind: "move", id: "m", order: [3, 1, 2] }])).toEqual([3, 1, 2]);
  expect(ids([send({ queued: true })])).toEqual([1, 2, 3, null]);
  expect(ids([])).toEqual([1, 2, 3]);
  const edited = shownQueue(chat, [
    { kind: "edit_queued", id: "e", queuedId: 2, parts: [{ type: "text", text: "new" }] },
  ]);
  expect(edited[1]).toMatchObject({ faint: true, parts: [{ text: "new" }] });
});

test("a message that interrupts is the head of the queue, and the chat is being stopped", () => {
  const chat = data({ status: "running", queue: [queued(1), queued(2)] });
  const now = (id: string) => send({ id, queued: true, body: { content: [], busy_behavior: "interrupt" } });
  expect(shownQueue(chat, [now("a")]).map((row) => row.key)).toEqual(["a", "q1", "q2"]);
  const both = shownQueue(chat, [now("a"), send({ id: "later", queued: true }), now("b")]);
  expect(both.map((row) => row.key)).toEqual(["b", "a", "q1", "q2", "later"]);
  expect(shownStatus(chat, [now("a")])).toBe("interrupting");
  expect(shownStatus(chat, [send({ queued: true })])).toBe("running");
});

test("hiding ends when the stream shows the queue without it", () => {
  const op: PendingOp = { kind: "delete", id: "d", queuedId: 2 };
  expect(settle([op], data({ queue: [queued(2)] }))).toHaveLength(1);
  expect(settle([op], data({ queue: [] }))).toEqual([]);
});

test("stopping and sending change the status at once", () => {
  expect(shownStatus(data({ status: "running" }), [{ kind: "stop", id: "x" }])).toBe("interrupting");
  expect(shownStatus(data({ status: "waiting" }), [{ kind: "stop", id: "x" }])).toBe("waiting");
  expect(shownStatus(data({ status: "waiting" }), [send()])).toBe("running");
  expect(shownStatus(data({ status: "error" }), [{ kind: "start", id: "x" }])).toBe("running");
});

test("an edit takes the later rows away, and a failed one brings them back", () => {
  const chat = data({ order: [1, 2, 3, 4] });
  const edit: PendingOp = { kind: "edit", id: "e", messageId: 3, parts, at: "" };
  expect(shownOrder(chat, [edit])).toEqual([1, 2]);
  expect(shownOrder(chat, [])).toBe(chat.order);
  expect(shownQueue(data({ queue: [queued(1)] }), [edit])).toEqual([]);
});

test("what is moved takes the place of another, forwards and backwards", () => {
  expect(moveInOrder([1, 2, 3], 1, 3)).toEqual({ order: [2, 3, 1], before: null });
  expect(moveInOrder([1, 2, 3], 3, 1)).toEqual({ order: [3, 1, 2], before: 1 });
  expect(moveInOrder([1, 2, 3], 2, 3)).toEqual({ order: [1, 3, 2], before: null });
  expect(moveInOrder([1, 2, 3], 2, 2)).toBeNull();
  expect(moveInOrder([1, 2, 3], 1, undefined)).toBeNull();
  expect(moveInOrder([1, 2, 3], 9, 1)).toBeNull();
});

test("steering messages come first while a turn runs, because the agent reads them first", () => {
  const queue = [queued(1), { ...queued(2), steer: true }, queued(3)];
  const ids = (status: "running" | "interrupting", pending: PendingOp[] = []) =>
    shownQueue(data({ status, queue }), pending).map((row) => row.id ?? row.key);
  expect(ids("running")).toEqual([2, 1, 3]);
  expect(ids("interrupting")).toEqual([1, 2, 3]);
  const steering = send({ queued: true, body: { content: [], busy_behavior: "steer" } });
  expect(ids("running", [steering])).toEqual([2, "s1", 1, 3]);
  const move: PendingOp = { kind: "move", id: "m", order: [2, 1, 3], answered: 99 };
  expect(settle([move], data({ status: "running", queue }))).toEqual([]);
});
