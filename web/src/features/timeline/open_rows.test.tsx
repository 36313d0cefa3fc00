// @vitest-environment happy-dom
import { QueryClientProvider } from "@tanstack/react-query";
import { act } from "react";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { Message, Part } from "@/chat/types";
import { type Conversation, ConversationContext } from "@/features/conversation/chat_context";
import { LiveRow } from "@/features/timeline/live_row";
import { RowView } from "@/features/timeline/row";
import { useRows } from "@/features/timeline/timeline";
import { ChatSession } from "@/state/chat_session";
import { keys, queryClient } from "@/state/queries";
import { type FakeHost, hostOnFakeTimers } from "@/testing/fake_host";
import { type Mounted, mount } from "@/testing/mount";
import { begins, hello, message, messages, part, say, status, stored, synced } from "@/testing/stream";

let host: FakeHost;
let session: ChatSession;
let page: Mounted;
let older: Message[];

function Rows() {
  return (
    <>
      {useRows(session).map((row) => (
        <RowView key={row.key} row={row} />
      ))}
      <LiveRow session={session} />
    </>
  );
}

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "setInterval", "clearInterval", "Date"] });
  queryClient.setQueryData(keys.preferences, { display: {}, compaction_thresholds: {} });
  queryClient.setQueryData(keys.chat("c"), { id: "c" });
  older = [];
  vi.stubGlobal("fetch", async () => Response.json({ items: older, has_more: false }));
  host = hostOnFakeTimers();
  session = new ChatSession("c", host);
  session.open();
  const conversation = { session, isOwner: false, openFile: null, modelName: () => null } as unknown as Conversation;
  page = mount(
    <QueryClientProvider client={queryClient}>
      <ConversationContext value={conversation}>
        <Rows />
      </ConversationContext>
    </QueryClientProvider>,
  );
  act(() => host.socket.open());
});
afterEach(() => {
  page.unmount();
  session.close();
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

const hear = (...events: unknown[]) =>
  act(() => {
    host.socket.say(events);
    vi.advanceTimersByTime(50);
  });
const call = (id: string, name = "read_file"): Part => ({
  type: "tool-call",
  tool_call_id: id,
  tool_name: name,
  args: { path: `/${id}` },
});
const result = (id: string): Part => ({
  type: "tool-result",
  tool_call_id: id,
  tool_name: "read_file",
  result: { content: id },
});
const think = (text: string): Part => ({ type: "reasoning", text });

/** Return whether the row with this text is open; undefined if there is no such row. */
function isOpen(words: RegExp): boolean | undefined {
  const line = [...page.element.querySelectorAll("button[aria-expanded]")].filter((one) =>
    words.test(one.textContent ?? ""),
  );
  expect(line.length).toBeLessThanOrEqual(1);
  return line[0] && line[0].getAttribute("aria-expanded") === "true";
}
function press(words: RegExp): void {
  const line = [...page.element.querySelectorAll("button[aria-expanded]")].find((one) =>
    words.test(one.textContent ?? ""),
  );
  if (!line) throw new Error(`nothing says ${words}: ${page.text()}`);
  act(() => line.dispatchEvent(new MouseEvent("click", { bubbles: true })));
}
const groups = () =>
  [...page.element.querySelectorAll("[data-testid=tool-group] > button")].map((one) =>
    one.getAttribute("aria-expanded"),
  );

test("a card that was opened stays open when its step is stored and it becomes part of a group", () => {
  hear(hello(), status("running"), ...messages(message(1, "user", [say("go")])), synced(1, 1));
  hear(begins(1), part(1, call("c1-a")));
  expect(isOpen(/c1-a/)).toBe(false);
  press(/c1-a/);
  hear(...stored(2, message(2, "assistant", [call("c1-a")]), message(3, "tool", [result("c1-a")])));
  expect(isOpen(/c1-a/)).toBe(true);

  // A second call makes a group, which must not collapse the open call.
  hear(begins(2), part(1, call("c1-b")));
  hear(...stored(3, message(4, "assistant", [call("c1-b")]), message(5, "tool", [result("c1-b")])));
  expect(groups()).toEqual(["true"]);
  expect(isOpen(/c1-a/)).toBe(true);
  expect(isOpen(/c1-b/)).toBe(false);
});

test("a group that was opened stays open across commit, regrouping and older pages, and closed once closed", async () => {
  const reset = { type: "history_reset", count: 2, has_more: true };
  const start = [message(20, "assistant", [call("c2-a")]), message(21, "tool", [result("c2-a")])];
  hear(hello(), reset, status("running"), ...messages(...start), synced(1, 21));
  hear(begins(1), part(1, call("c2-b")), part(2, call("c2-c")));
  expect(groups()).toEqual(["false"]);
  press(/2 calls/);
  expect(groups()).toEqual(["true"]);

  // After the commit, the live group is merged with the call before it.
  const step = message(22, "assistant", [call("c2-b"), call("c2-c")]);
  hear(...stored(2, step, message(23, "tool", [result("c2-b"), result("c2-c")])));
  expect(groups()).toEqual(["true"]);
  expect(page.element.querySelectorAll("[data-testid=tool-read_file]")).toHaveLength(3);

  // Older calls of the same turn are added at its start.
  older = [
    message(1, "user", [say("go")]),
    message(2, "assistant", [call("c2-y"), call("c2-z")]),
    message(3, "tool", [result("c2-y"), result("c2-z")]),
  ];
  await act(() => session.loadOlder());
  expect(groups()).toEqual(["true"]);
  expect(page.element.querySelectorAll("[data-testid=tool-read_file]")).toHaveLength(5);

  // The user closes it; further calls do not open it.
  press(/^Read 5 files/);
  expect(groups()).toEqual(["false"]);
  hear(...stored(3, message(24, "assistant", [call("c2-d")]), message(25, "tool", [result("c2-d")])));
  expect(groups()).toEqual(["false"]);
});

test("a thought stays as it was left when it is stored, and the next one is not touched by it", () => {
  hear(hello(), status("running"), ...messages(message(31, "user", [say("go")])), synced(1, 31));
  hear(begins(1), part(1, think("**First** idea")));
  expect(isOpen(/First/)).toBe(true);
  press(/First/);
  expect(isOpen(/First/)).toBe(false);
  // The reasoning of the next step is open while it arrives.
  hear(
    ...stored(
      2,
      message(32, "assistant", [think("**First** idea"), call("c3-a")]),
      message(33, "tool", [result("c3-a")]),
    ),
  );
  expect(isOpen(/First/)).toBe(false);
  hear(begins(2), part(1, think("**Second** idea")));
  expect(isOpen(/Second/)).toBe(true);

  // If the user opened it while it arrived, it is open after the commit.
  press(/Second/);
  press(/Second/);
  hear(status("waiting"), ...stored(4, message(34, "assistant", [think("**Second** idea"), say("Done.")])));
  expect(isOpen(/Second/)).toBe(true);
  expect(isOpen(/First/)).toBe(false);
});
