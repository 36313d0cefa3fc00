// @vitest-environment happy-dom
import { act } from "react";
import { MemoryRouter } from "react-router";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { ChatView } from "@/api/types.gen";
import { useNotifications } from "@/app/notifications";
import { startWatch, stopWatch } from "@/state/chat_list_stream";
import { inOneTab } from "@/state/one_tab";
import { type FakeHost, hostOnFakeTimers } from "@/testing/fake_host";
import { FakeLocks } from "@/testing/locks";
import { type Mounted, mount } from "@/testing/mount";
import { Toasts } from "@/ui/toast";

let host: FakeHost;
let locks: FakeLocks;
let tabs: Mounted[];

function Tab() {
  useNotifications();
  return null;
}

beforeEach(() => {
  vi.useFakeTimers();
  locks = new FakeLocks();
  vi.spyOn(navigator, "locks", "get").mockReturnValue(locks as unknown as LockManager);
  host = hostOnFakeTimers();
  tabs = [1, 2, 3].map(() =>
    mount(
      <MemoryRouter>
        <Tab />
      </MemoryRouter>,
    ),
  );
  startWatch(host);
  act(() => {
    host.socket.open();
    host.socket.say([{ type: "ready" }]);
  });
});
afterEach(() => {
  for (const tab of tabs) tab.unmount();
  stopWatch();
  vi.restoreAllMocks();
  vi.useRealTimers();
});

const news = (status: string, version: number) => {
  const chat = { id: "a", title: "One", parent_chat_id: null, needs_user: null } as Partial<ChatView>;
  act(() =>
    host.socket.say([{ type: "chat", kinds: ["status"], chat: { ...chat, status, snapshot_version: version } }]),
  );
};
const pass = (ms: number) => act(() => vi.advanceTimersByTimeAsync(ms));

test("one of three tabs tells that a turn is done, and one of the next", async () => {
  // A toast replaces an earlier one with the same text, so the insertions are counted.
  const page = mount(<Toasts />);
  let appeared = 0;
  new MutationObserver((changes) => {
    for (const change of changes) appeared += change.addedNodes.length;
  }).observe(page.element.querySelector("section") as Element, { childList: true });

  news("running", 1);
  await pass(1000);
  expect(locks.asked).toEqual([]);
  news("waiting", 2);
  await pass(5000);
  expect(locks.asked).toEqual(["rookery:a:2", "rookery:a:2", "rookery:a:2"]);
  expect([page.text(), appeared]).toEqual(["“One” is done.Open", 1]);

  news("running", 3);
  news("waiting", 4);
  await pass(5000);
  expect(appeared).toBe(2);
  page.unmount();
});

test("a tab that hears of it a second later finds it told", async () => {
  const told: string[] = [];
  void inOneTab("n", 0, () => told.push("first"));
  await pass(1000);
  void inOneTab("n", 0, () => told.push("second"));
  await pass(5000);
  expect(told).toEqual(["first"]);
});

test("the tab that shows the chat comes first, independent of who got the event first", async () => {
  const told: string[] = [];
  void inOneTab("n", 200, () => told.push("hidden"));
  void inOneTab("n", 100, () => told.push("visible"));
  void inOneTab("n", 0, () => told.push("in view"));
  await pass(5000);
  expect(told).toEqual(["in view"]);
});
