// @vitest-environment happy-dom
import { act } from "react";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { useStore } from "zustand";
import { type Conversation, ConversationContext } from "@/features/conversation/chat_context";
import { RetryBanner } from "@/features/timeline/error_row";
import { ChatSession } from "@/state/chat_session";
import { hostOnFakeTimers } from "@/testing/fake_host";
import { type Mounted, mount } from "@/testing/mount";
import { begins, hello, part, say, status, synced } from "@/testing/stream";

const SERVER = Date.parse("2026-01-01T10:00:00Z");
const HOUR = 3_600_000;

let page: Mounted;
beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  page.unmount();
  vi.useRealTimers();
});

/** The retry banner, as the timeline shows it. */
function Trouble({ session }: { session: ChatSession }) {
  const { retry, clockSkew } = useStore(session.store, (state) => state.data);
  return retry && <RetryBanner retry={retry} clockSkew={clockSkew} />;
}

test.each([
  ["right", 0],
  ["a day ahead", 24 * HOUR],
  ["three hours behind", -3 * HOUR],
])("a retry is counted down by the server's clock when ours is %s", (_, skew) => {
  vi.setSystemTime(SERVER + skew);
  const host = hostOnFakeTimers();
  const session = new ChatSession("c", host);
  session.open();
  const conversation = { session, isOwner: false } as Conversation;
  page = mount(
    <ConversationContext value={conversation}>
      <Trouble session={session} />
    </ConversationContext>,
  );
  act(() => {
    host.socket.open();
    host.socket.say([hello(new Date(SERVER).toISOString()), status("running"), synced(1)]);
    host.socket.say([begins(1), part(1, say("half an answer"))]);
  });
  const retry = { attempt: 2, kind: "overloaded", error: "Busy.", retrying_at: new Date(SERVER + 8000).toISOString() };
  act(() => host.socket.say([{ type: "retry", retry }, synced(2)]));
  expect(page.text()).toContain("Provider overloaded");
  expect(page.text()).toContain("Next attempt in 8 s · Attempt 2");
  expect(session.store.getState().data.preview?.stale).toBe(true);

  act(() => vi.advanceTimersByTime(5000));
  expect(page.text()).toContain("Next attempt in 3 s");
  act(() => vi.advanceTimersByTime(3500));
  expect(page.text()).toContain("Trying again");

  // The next attempt has text: the banner and the dimmed text disappear.
  act(() => {
    host.socket.say([{ type: "retry", retry: null }, synced(3)]);
    host.socket.say([begins(3), part(1, say("An answer"))]);
    vi.advanceTimersByTime(50);
  });
  expect(page.text()).toBe("");
  expect(session.store.getState().data.preview?.stale).toBe(false);
  session.close();
});
