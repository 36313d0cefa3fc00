import { expect, test, vi } from "vitest";
import { FakeHost } from "@/testing/fake_host";
import { DebugFollower, pollAfter } from "./debug_records";

vi.stubGlobal("location", { href: "http://localhost/" });
vi.stubGlobal("localStorage", { getItem: () => null });

function follower() {
  const host = new FakeHost();
  const changes: (string | null)[][] = [];
  const one = new DebugFollower("c", (runs) => changes.push([...runs]), { host });
  const close = one.open();
  return { host, changes, one, close };
}

test("records are followed on a stream without messages and parts", () => {
  const { host } = follower();
  expect(host.socket.url).toContain("/chats/c/stream?debug=true&parts=false&mark_read=false&tail=0");
});

test("changes are collected for a moment, and each run is named once", () => {
  const { host, changes } = follower();
  host.socket.open();
  host.pass(400);
  expect(changes).toEqual([[null]]);
  const update = (run_id: string) => ({ type: "debug_update", kind: "step", run_id });
  host.socket.say([update("a"), update("b"), { type: "heartbeat", server_time: "" }, update("a")]);
  host.pass(399);
  expect(changes).toHaveLength(1);
  host.pass(1);
  expect(changes[1]).toEqual(["a", "b"]);
});

test("everything is loaded again after a lost connection, and nothing after closing", () => {
  const { host, changes, one, close } = follower();
  host.socket.open();
  expect(one.store.getState().conn.phase).toBe("live");
  host.pass(400);
  host.socket.end(1006);
  expect(one.store.getState().conn.phase).toBe("backoff");
  host.pass(60_000);
  host.socket.open();
  host.pass(400);
  expect(changes).toEqual([[null], [null]]);
  host.socket.say([{ type: "debug_update", kind: "run", run_id: "a" }]);
  close();
  host.pass(60_000);
  expect(changes).toHaveLength(2);
});

test("the panel asks again only without a stream and while a run is open, more slowly after an error", () => {
  expect(pollAfter(true, true, false)).toBe(false);
  expect(pollAfter(false, false, false)).toBe(false);
  expect(pollAfter(false, true, false)).toBe(5_000);
  expect(pollAfter(false, true, true)).toBe(30_000);
});
