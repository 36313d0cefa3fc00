import { beforeEach, expect, test } from "vitest";
import type { StreamEvent } from "@/chat/types";
import { FakeHost } from "@/testing/fake_host";
import { Connection, type ConnectionState, forgetTransport } from "./stream_connection";

let host: FakeHost;
let states: ConnectionState[];
let frames: StreamEvent[][];
let connection: Connection;

beforeEach(() => {
  (globalThis as { location?: unknown }).location = { href: "http://localhost/" };
  forgetTransport();
  host = new FakeHost();
  states = [];
  frames = [];
  connection = new Connection(
    {
      path: "/chats/c/stream",
      query: () => ({}),
      onOpen: () => {},
      onFrame: (events) => frames.push(events),
      onState: (state) => states.push(state),
    },
    host,
  );
});

const phase = () => connection.current.phase;
const flush = async () => {
  for (let n = 0; n < 5; n += 1) await Promise.resolve();
};

test("a lost connection is opened again after a wait that grows, and the count starts over when it opens", () => {
  connection.connect();
  host.socket.open();
  expect(phase()).toBe("live");
  host.socket.end(1011);
  expect([phase(), connection.current.attempt, connection.current.retryAt]).toEqual(["backoff", 1, 1000]);

  host.pass(1000);
  expect(host.sockets).toHaveLength(2);
  host.socket.open();
  host.socket.end(1012);
  expect(connection.current.retryAt - host.time).toBe(1000);
});

test("silence for 50 seconds is a loss, and every frame puts it off", () => {
  connection.connect();
  host.socket.open();
  host.pass(40_000);
  host.socket.say([{ type: "heartbeat", server_time: "" }]);
  host.pass(49_000);
  expect(phase()).toBe("live");
  host.pass(2_000);
  expect(phase()).not.toBe("live");
});

test.each([
  [1000, "stop"],
  [4401, "signed_out"],
  [4403, "forbidden"],
  [4404, "gone"],
  [4429, "refused"],
])("after %i nothing is tried by itself", (code, ending) => {
  connection.connect();
  host.socket.open();
  host.socket.end(code);
  host.pass(600_000);
  expect([phase(), connection.current.ending, host.sockets.length]).toEqual(["stopped", ending, 1]);
});

test("a goodbye says when to come back", () => {
  connection.connect();
  host.socket.open();
  host.socket.say([{ type: "goodbye", retry_after_ms: 137 }]);
  host.socket.end(1012);
  host.pass(137);
  expect(host.sockets).toHaveLength(2);
});

test("events of an old connection are ignored", () => {
  connection.connect();
  const old = host.socket;
  old.open();
  old.end(1011);
  host.pass(1000);
  host.socket.open();
  old.say([{ type: "heartbeat", server_time: "" }]);
  old.end(4404);
  expect([phase(), frames.length]).toEqual(["live", 0]);
});

test("a refused upgrade is asked for its reason", async () => {
  host.status = 404;
  connection.connect();
  host.socket.end(1006);
  await flush();
  expect([phase(), connection.current.ending]).toEqual(["stopped", "gone"]);
});

test("two upgrades that fail lead to server-sent events for this tab", async () => {
  connection.connect();
  host.socket.end(1006);
  await flush();
  host.pass(2000);
  host.socket.end(1006);
  await flush();
  host.pass(3000);
  await flush();
  expect([connection.current.transport, host.sockets.length]).toEqual(["sse", 2]);
  connection.close();
});

test("a server that is away is no reason to give up sockets", async () => {
  host.fetch = (async () => {
    throw new TypeError("refused");
  }) as typeof fetch;
  connection.connect();
  for (let n = 0; n < 4; n += 1) {
    host.socket.end(1006);
    await flush();
    host.pass(10_000);
  }
  expect([connection.current.transport, host.sockets.length]).toEqual(["ws", 5]);
});

test("asked to connect while waiting, it does so at once", () => {
  connection.connect();
  host.socket.open();
  host.socket.end(1011);
  connection.connect();
  expect(host.sockets).toHaveLength(2);
  connection.connect();
  expect(host.sockets).toHaveLength(2);
});
