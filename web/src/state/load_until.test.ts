// @vitest-environment happy-dom
import { afterEach, expect, test, vi } from "vitest";
import { ChatSession } from "@/state/chat_session";
import { FakeHost } from "@/testing/fake_host";
import { hello, message, messages, say, status, synced } from "@/testing/stream";

afterEach(() => void vi.unstubAllGlobals());

/** A session with the newest of a thousand messages, and the requests it sent. */
function opened(): { session: ChatSession; asked: string[] } {
  const asked: string[] = [];
  vi.stubGlobal("fetch", async (url: string) => {
    const query = new URL(url, "http://localhost").searchParams;
    const before = Number(query.get("before_id"));
    asked.push(`${query.get("limit")} before ${before}`);
    await new Promise((resolve) => setTimeout(resolve, 1));
    const first = Math.max(1, before - Number(query.get("limit")));
    const items = Array.from({ length: before - first }, (_, index) => message(before - 1 - index, "user", [say("?")]));
    return Response.json({ items, has_more: first > 1 });
  });
  const host = new FakeHost();
  const session = new ChatSession("c", host);
  session.open();
  host.socket.open();
  const reset = { type: "history_reset", count: 1, has_more: true };
  host.socket.say([hello(), reset, status("waiting"), ...messages(message(1000, "user", [say("!")])), synced(1, 1000)]);
  return { session, asked };
}

test("what is far back is loaded although another page is already under way", async () => {
  const { session, asked } = opened();
  const near = session.loadOlder();
  expect(await session.loadUntil(400)).toBe(true);
  await near;
  expect(session.store.getState().data.messages.has(400)).toBe(true);
  expect(asked).toEqual(["50 before 1000", "200 before 950", "200 before 750", "200 before 550"]);
});

test("a message that is not there ends the search for it", async () => {
  const { session } = opened();
  expect(await session.loadUntil(0)).toBe(false);
  expect(session.store.getState().data.order).toHaveLength(1000);
  expect(await session.loadUntil(1001)).toBe(false);
});

test("after a failure the next one who asks tries again", async () => {
  const { session } = opened();
  const works = globalThis.fetch;
  vi.stubGlobal("fetch", async () => Response.error());
  expect(await session.loadUntil(900)).toBe(false);
  expect(session.store.getState().older).toBe("error");
  vi.stubGlobal("fetch", works);
  expect(await session.loadUntil(900)).toBe(true);
});
