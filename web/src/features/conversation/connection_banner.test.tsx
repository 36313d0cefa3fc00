// @vitest-environment happy-dom
import { act } from "react";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { ChatSession } from "@/state/chat_session";
import { type FakeHost, hostOnFakeTimers } from "@/testing/fake_host";
import { type Mounted, mount } from "@/testing/mount";
import { hello, status, synced } from "@/testing/stream";
import { ConnectionBanner } from "./connection_banner";

let host: FakeHost;
let session: ChatSession;
let page: Mounted;

beforeEach(() => {
  vi.useFakeTimers();
  host = hostOnFakeTimers();
  session = new ChatSession("c", host);
  session.open();
  page = mount(<ConnectionBanner session={session} />);
});
afterEach(() => {
  page.unmount();
  session.close();
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

function connect(now: "running" | "waiting"): void {
  act(() => {
    host.socket.open();
    host.socket.say([hello(), status(now), synced(1)]);
  });
}
const cut = () => act(() => host.socket.end(1006));

/** Advance the time in small steps; return all texts that were shown. */
function shownDuring(ms: number): Set<string> {
  const shown = new Set<string>();
  for (let passed = 0; passed < ms; passed += 50) {
    act(() => vi.advanceTimersByTime(50));
    shown.add(page.text());
  }
  return shown;
}

test("ten cuts of less than two seconds in a turn show no banner", () => {
  connect("running");
  for (let n = 0; n < 10; n += 1) {
    cut();
    expect(session.store.getState().conn.phase).not.toBe("live");
    expect([...shownDuring(1950)]).toEqual([""]);
    connect("running");
    expect([...shownDuring(700)]).toEqual([""]);
  }
});

test("a cut that lasts is said while a turn runs, and no longer than it lasts", () => {
  connect("running");
  cut();
  shownDuring(1950);
  expect(page.text()).toBe("");
  shownDuring(1050);
  expect(page.text()).toContain("Offline. Connecting.");
  connect("running");
  expect(page.text()).toBe("");
});

test("a server that says goodbye and comes back in time is not noticed", () => {
  connect("running");
  act(() => {
    host.socket.say([{ type: "goodbye", retry_after_ms: 1200 }]);
    host.socket.end(1012);
  });
  expect([...shownDuring(1150)]).toEqual([""]);
  expect(host.sockets).toHaveLength(1);
  expect([...shownDuring(300)]).toEqual([""]);
  expect(host.sockets).toHaveLength(2);
  connect("running");
  expect([...shownDuring(3000)]).toEqual([""]);
});

test("an idle chat shows none, however long it lasts, until something is to be sent", async () => {
  connect("waiting");
  cut();
  expect([...shownDuring(30_000)]).toEqual([""]);
  vi.stubGlobal("fetch", () => Promise.reject(new TypeError("away")));
  await act(async () => void session.send({ content: [] }, [{ type: "text", text: "hi" }], "s1"));
  shownDuring(100);
  expect(page.text()).toContain("Offline.");
});

test("a chat that was left while offline is not shown as offline when it is opened again", () => {
  connect("running");
  cut();
  act(() => session.close());
  act(() => vi.advanceTimersByTime(60_000));
  act(() => session.reconnect());
  expect([...shownDuring(1950)]).toEqual([""]);
});
