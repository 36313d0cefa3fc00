// @vitest-environment happy-dom
import { act } from "react";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { useStore } from "zustand";
import { useReadMark } from "@/features/timeline/read_mark";
import { ChatSession } from "@/state/chat_session";
import { type FakeHost, hostOnFakeTimers } from "@/testing/fake_host";
import { type Mounted, mount } from "@/testing/mount";
import { hello, message, messages, say, status, synced } from "@/testing/stream";

let host: FakeHost;
let session: ChatSession;
let page: Mounted;
let visible: boolean;
const fetched = vi.fn(() => Promise.resolve(new Response(null, { status: 204 })));

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal("fetch", fetched);
  vi.spyOn(document, "visibilityState", "get").mockImplementation(() => (visible ? "visible" : "hidden"));
  host = hostOnFakeTimers();
  session = new ChatSession("c", host);
  session.open();
});
afterEach(() => {
  page.unmount();
  session.close();
  expect(fetched).not.toHaveBeenCalled();
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

function Reader({ isFar }: { isFar: boolean }) {
  useReadMark(
    session,
    isFar,
    useStore(session.store, (state) => state.data.loaded),
  );
  return null;
}

const read = () => host.sockets.flatMap((one) => one.sent).map((text) => JSON.parse(text) as unknown);
const pass = (ms: number) => act(() => vi.advanceTimersByTime(ms));
const arrive = (...ids: number[]) =>
  act(() => {
    for (const id of ids) {
      host.socket.say([...messages(message(id, "assistant", [say("one")])), synced(id, id)]);
      vi.advanceTimersByTime(3000);
    }
  });
function begin(isVisible: boolean, isFar = false): void {
  visible = isVisible;
  page = mount(<Reader isFar={isFar} />);
  act(() => {
    host.socket.open();
    host.socket.say([hello(), status("running"), ...messages(message(1, "user", [say("go")])), synced(1, 1)]);
  });
}

test("a tab in the background marks nothing as read, until it is looked at", () => {
  begin(false);
  arrive(2, 3, 4);
  pass(30_000);
  expect(read()).toEqual([]);
  // The server does not mark it as read by itself either.
  expect(new URL(host.socket.url).searchParams.get("mark_read")).toBe("false");

  visible = true;
  act(() => void document.dispatchEvent(new Event("visibilitychange")));
  expect(read()).toEqual([{ type: "read", message_id: 4 }]);
  pass(30_000);
  expect(read()).toHaveLength(1);
});

test("who looks at the end has read it, at most once a second", () => {
  begin(true);
  expect(read()).toEqual([{ type: "read", message_id: 1 }]);
  act(() => {
    for (const id of [2, 3, 4, 5]) host.socket.say([...messages(message(id, "assistant", [say("x")])), synced(id, id)]);
  });
  pass(500);
  expect(read()).toHaveLength(1);
  pass(2000);
  expect(read().slice(1)).toEqual([{ type: "read", message_id: 5 }]);
});

test("who reads far above has not seen what came below", () => {
  begin(true, true);
  arrive(2, 3);
  expect(read()).toEqual([]);
  page.show(<Reader isFar={false} />);
  expect(read()).toEqual([{ type: "read", message_id: 3 }]);
});
