// @vitest-environment happy-dom
import { act } from "react";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { useTurnAnnouncements } from "@/features/conversation/turn_announcements";
import { appearance } from "@/state/appearance";
import { ChatSession } from "@/state/chat_session";
import { type FakeHost, hostOnFakeTimers } from "@/testing/fake_host";
import { type Mounted, mount } from "@/testing/mount";
import { begins, hello, message, messages, part, say, status, synced } from "@/testing/stream";
import { Announcer } from "@/ui/announcer";

const WORDS = "The cause is a race in the cache. I changed two files! Both tests pass now, and ".split(/(?<= )/);
const TOKENS = Array.from({ length: 10 }, () => WORDS).flat();
const ANSWER = TOKENS.join("");

let host: FakeHost;
let session: ChatSession;
let page: Mounted;
/** The announcements of the live regions, in order. */
let log: string[];

function Chat() {
  useTurnAnnouncements(session);
  return <Announcer />;
}

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "Date", "requestAnimationFrame"] });
  host = hostOnFakeTimers();
  session = new ChatSession("c", host);
  session.open();
  page = mount(<Chat />);
  log = [];
  for (const region of page.element.querySelectorAll("[role=status], [role=alert]")) {
    let last = "";
    const note = () => {
      const text = region.textContent ?? "";
      if (text && text !== last) log.push(`${region.getAttribute("role") === "alert" ? "! " : ""}${text}`);
      last = text;
    };
    new MutationObserver(note).observe(region, { childList: true, characterData: true, subtree: true });
  }
  act(() => {
    host.socket.open();
    host.socket.say([hello(), status("waiting"), ...messages(message(1, "user", [say("old")])), synced(1, 1)]);
  });
});
afterEach(() => {
  page.unmount();
  session.close();
  appearance.setState({ announce: "end" });
  vi.useRealTimers();
});

async function hear(events: unknown[], ms = 40): Promise<void> {
  act(() => host.socket.say(events));
  await act(() => vi.advanceTimersByTimeAsync(ms));
}
const begin = () => hear([status("running"), ...messages(message(2, "user", [say("go")])), synced(2, 2), begins(2)]);
async function stream(): Promise<void> {
  for (const [at, word] of TOKENS.entries()) await hear([part(at + 1, say(word))]);
}
const end = (more = {}) =>
  hear([...messages(message(3, "assistant", [say(ANSWER)], more)), status("waiting"), synced(3, 3)], 100);

test("a turn is heard as a start and an end, with no token between", async () => {
  expect(log).toEqual([]);
  await begin();
  expect(log).toEqual(["Agent is working"]);
  await stream();
  expect(session.store.getState().data.preview?.blocks).toMatchObject([{ text: ANSWER }]);
  expect(log).toHaveLength(1);
  await end();
  expect(log.slice(1)).toEqual([`${ANSWER.slice(0, 300)}, ${ANSWER.length} characters`]);
});

test("without spoken answers, only the end of a turn is announced", async () => {
  appearance.setState({ announce: "off" });
  await begin();
  await stream();
  await end();
  expect(log).toEqual(["Agent is working", "Agent is done"]);
});

test("by sentence: whole ones, three seconds apart, and every word once", async () => {
  appearance.setState({ announce: "sentence" });
  await begin();
  const times: number[] = [];
  let heard = log.length;
  for (const [at, word] of TOKENS.entries()) {
    await hear([part(at + 1, say(word))]);
    if (log.length > heard) times.push(Date.now());
    heard = log.length;
  }
  expect(times.length).toBeGreaterThan(1);
  for (const [at, time] of times.entries())
    if (at > 0) expect(time - (times[at - 1] ?? 0)).toBeGreaterThanOrEqual(2900);
  for (const one of log.slice(1)) expect(one).toMatch(/[.!]$/);
  await end();
  expect(
    log
      .slice(1)
      .join(" ")
      .replace(/, \d+ characters$/, ""),
  ).toBe(ANSWER.trim());
});

test("stops, failures, questions and the queue are said, failures at once", async () => {
  await begin();
  await hear([{ type: "queue_update", queued_messages: [{ id: 1, content: [] }] }, synced(3, 2)]);
  await end({ finish_reason: "interrupted" });
  await begin();
  await hear([{ type: "error", error: { kind: "auth", message: "No." } }, status("error"), synced(5, 3)], 100);
  await begin();
  const asks = { type: "tool-call", tool_call_id: "q", tool_name: "ask_user_question", args: {} } as const;
  await hear([...messages(message(9, "assistant", [asks])), status("waiting"), synced(6, 9)], 100);
  expect(log).toEqual([
    "Agent is working",
    "1 message queued",
    "Stopped",
    "Agent is working",
    "! The turn failed",
    "Agent is working",
    "Needs you: Asks a question",
  ]);
});
