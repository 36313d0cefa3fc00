// @vitest-environment happy-dom
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { sendRows } from "@/chat/pending_operations";
import type { Part } from "@/chat/types";
import { ChatSession } from "@/state/chat_session";
import { FakeHost } from "@/testing/fake_host";
import { hello, message, messages, status, synced } from "@/testing/stream";

const parts: Part[] = [{ type: "text", text: "hi" }];

let host: FakeHost;
let session: ChatSession;
/** The client ids of requests, and how each is answered. */
let asked: string[];
let answer: () => Promise<Response>;

const away = () => Promise.reject(new TypeError("away"));
const taken = async () => Response.json({ chat: { snapshot_version: 9 }, queued: false });
const rows = () => sendRows(session.store.getState().pending);
const send = (id: string) => session.send({ content: [{ type: "text", text: id }] }, parts, id);

function open(): void {
  host = new FakeHost();
  host.time = Date.parse("2026-01-02T10:00:00Z");
  session = new ChatSession("c", host);
  session.restore("u");
  session.open();
  live();
}

function live(): void {
  host.socket.open();
  host.socket.say([hello(), status("waiting"), synced(1)]);
}

beforeEach(() => {
  localStorage.clear();
  asked = [];
  answer = taken;
  vi.stubGlobal("fetch", (_: string, init: RequestInit) => {
    asked.push((JSON.parse(String(init.body)) as { client_id: string }).client_id);
    return answer();
  });
  open();
});
afterEach(() => {
  session.close();
  vi.unstubAllGlobals();
});

test("messages that were sent while offline are sent in their order when the connection is back", async () => {
  host.socket.end(1006);
  answer = away;
  const sent = [send("one"), send("two")];
  // The connection is known to be lost, so the rows say so at once.
  expect(rows().map((op) => [op.id, op.waits])).toEqual([
    ["one", true],
    ["two", true],
  ]);
  await vi.waitFor(() => expect(asked).toEqual(["one"]));

  answer = taken;
  host.pass(1_500);
  live();
  await vi.waitFor(() => {
    host.pass(100);
    expect(asked.at(-1)).toBe("two");
  });
  expect(await Promise.all(sent)).toEqual(["sent", "sent"]);
  expect(asked.filter((id) => id === "two")).toEqual(["two"]);
  expect(asked.at(-1)).toBe("two");
  host.socket.say([
    ...messages(message(5, "user", parts, { client_id: "one" }), message(6, "user", parts, { client_id: "two" })),
    synced(9, 6),
  ]);
  await vi.waitFor(() => expect(rows()).toEqual([]));
  expect(Object.keys(localStorage)).toEqual([]);
});

test("a message is tried again without the stream as well, because a proxy may refuse only one of them", async () => {
  answer = async () => new Response("", { status: 503 });
  const sent = send("one");
  await vi.waitFor(() => expect(rows()[0]?.waits).toBe(true));
  answer = taken;
  host.pass(2_000);
  expect(await sent).toBe("sent");
  expect(asked).toEqual(["one", "one"]);
});

test("a message that waits is sent after a reload, and an old one asks first", async () => {
  answer = away;
  void send("one");
  await vi.waitFor(() => expect(rows()[0]?.waits).toBe(true));
  session.close();
  answer = taken;
  open();
  await vi.waitFor(() => expect(rows()[0]?.answered).toBe(9));
  expect(asked).toEqual(["one", "one"]);

  answer = away;
  void send("two");
  await vi.waitFor(() => expect(Object.keys(localStorage)).toHaveLength(1));
  session.close();
  host = new FakeHost();
  host.time = Date.parse("2026-01-04T10:00:00Z");
  session = new ChatSession("c", host);
  session.restore("u");
  expect(rows()[0]?.failed).toContain("more than a day");
  answer = taken;
  expect(await session.resend("two")).toBe("sent");
});

test("another user of the browser does not send it", async () => {
  answer = away;
  void send("one");
  await vi.waitFor(() => expect(rows()[0]?.waits).toBe(true));
  session.close();
  session = new ChatSession("c", new FakeHost());
  session.restore("another");
  expect(rows()).toEqual([]);
});

test("a message that waits can be taken back, and those behind it are sent", async () => {
  answer = away;
  const sent = [send("one"), send("two")];
  await vi.waitFor(() => expect(rows()[0]?.waits).toBe(true));
  answer = taken;
  expect(session.discard("one")?.parts).toEqual(parts);
  expect(await Promise.all(sent)).toEqual(["sent", "sent"]);
  expect(asked).toEqual(["one", "two"]);
});

test("a refusal is shown, and the text of a message that waited stays in its row when the queue is full", async () => {
  answer = away;
  const sent = send("one");
  await vi.waitFor(() => expect(rows()[0]?.waits).toBe(true));
  answer = async () => Response.json({ code: "queue_full", message: "Full." }, { status: 429 });
  host.pass(2_000);
  expect(await sent).toBe("failed");
  expect(rows()[0]).toMatchObject({ failed: "Full.", waits: false });
  expect(await send("two")).toBe("queue_full");
  expect(rows()).toHaveLength(1);
});
