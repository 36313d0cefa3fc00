import { describe, expect, test } from "vitest";
import { type ChatData, connected, EMPTY, type Held, take, withMessages, withoutGhost } from "@/chat/reducer";
import type { Message, StreamEvent } from "@/chat/types";

const NOW = Date.parse("2026-01-01T00:00:00Z");

function message(id: number, role = "assistant", text = `m${id}`): Message {
  return {
    id,
    chat_id: "c",
    role,
    content: [{ type: "text", text }],
    created_at: "2026-01-01T00:00:00Z",
    created_by: null,
    model_config_id: null,
    reasoning_effort: null,
    client_id: null,
    usage: null,
    context_tokens: null,
    finish_reason: null,
    cost_micros: null,
    runtime_ms: null,
  };
}

const hello: StreamEvent = {
  type: "hello",
  chat_id: "c",
  replica_id: "r",
  server_time: "2026-01-01T00:00:05Z",
  resume: "window",
};
const added = (one: Message): StreamEvent => ({ type: "message", message: one });
const reset = (count = 0): StreamEvent => ({ type: "history_reset", count, has_more: false, first_message_id: null });
const status = (value: string): StreamEvent => ({ type: "status", status: value, archived: false });
const synced = (version: number, last = 0): StreamEvent => ({
  type: "synced",
  snapshot_version: version,
  history_version: version,
  queue_version: 1,
  last_message_id: last,
});
const episode = (reason: string, version = 1, attempt = 1): StreamEvent => ({
  type: "preview_reset",
  history_version: version,
  generation_attempt: attempt,
  reason,
});
const part = (seq: number, text: string, n = 1): StreamEvent => ({
  type: "message_part",
  seq,
  n,
  role: "assistant",
  part: { type: "text", text },
});
const retry = (attempt: number): StreamEvent => ({
  type: "retry",
  retry: { attempt, delay_ms: 1000, error: "overloaded", retrying_at: "2026-01-01T00:00:10Z" },
});

interface Played {
  held: Held;
  shown: ChatData[];
  resyncs: number;
}

function play(events: StreamEvent[], from: Held = { data: EMPTY, pending: [] }): Played {
  let held = from;
  const shown: ChatData[] = [];
  let resyncs = 0;
  for (const event of events) {
    const taken = take(held, event, NOW);
    held = taken.held;
    if (taken.publish !== "no") shown.push(held.data);
    if (taken.resync) resyncs += 1;
  }
  return { held, shown, resyncs };
}

const running = play([
  hello,
  reset(),
  added(message(1, "user")),
  status("running"),
  episode("history"),
  synced(1, 1),
]).held;

test("nothing of a change is shown before it is whole", () => {
  const { shown } = play([hello, reset(1), added(message(1, "user")), status("running"), synced(1, 1)]);

  expect(shown).toHaveLength(1);
  expect(shown[0]?.order).toEqual([1]);
  expect(shown[0]?.clockSkew).toBe(5000);
});

test("a commit takes the preview away in the same change", () => {
  const { shown } = play(
    [part(1, "Wor"), part(2, "d"), added(message(2)), episode("history", 2), synced(2, 2)],
    running,
  );

  expect(shown.map((data) => [data.order.length, data.preview?.blocks.length])).toEqual([
    [1, 1],
    [1, 1],
    [2, 0],
  ]);
});

test("text only grows within an attempt, and blank words are kept inside of it", () => {
  const { held } = play([part(1, "  "), part(2, "a"), part(3, "\n\n"), part(4, "b")], running);
  expect(held.data.preview?.blocks).toEqual([{ kind: "text", text: "a\n\nb", refusal: false }]);
});

test("a part that does not follow is dropped and asks for a fresh start, a repeated one is not", () => {
  const gap = play([part(1, "a"), part(3, "c")], running);
  expect([gap.resyncs, gap.held.data.preview?.lastSeq]).toEqual([1, 1]);

  const twice = play([part(1, "a"), part(1, "a")], running);
  expect([twice.resyncs, twice.held.data.preview?.blocks.length]).toEqual([0, 1]);

  const merged = play([part(3, "abc", 3), part(4, "d")], running);
  expect(merged.held.data.preview?.blocks[0]).toMatchObject({ text: "abcd" });
});

test("known messages never change, and order ascends", () => {
  const { held } = play(
    [added(message(3)), added(message(2)), added(message(1, "user", "other")), synced(3, 3)],
    running,
  );
  expect(held.data.order).toEqual([1, 2, 3]);
  expect(held.data.messages.get(1)?.content).toEqual([{ type: "text", text: "m1" }]);
});

test("a second reset restarts the collection, and the list is replaced at once", () => {
  const { held, shown } = play(
    [reset(), added(message(8)), reset(), added(message(9)), status("waiting"), synced(9, 9)],
    running,
  );
  expect(held.data.order).toEqual([9]);
  expect(held.data.resets).toBe(2);
  expect(shown).toHaveLength(1);
});

test("rows before a new window stay as long as its first one was known", () => {
  const far = play([reset(), ...[1, 2, 3, 4].map((id) => added(message(id))), status("waiting"), synced(1, 4)]).held;
  // An edit removed the end of the history; the window begins in the middle of the held messages.
  const cut = play([reset(), added(message(3)), added(message(9)), status("running"), synced(2, 9)], far);
  expect(cut.held.data.order).toEqual([1, 2, 3, 9]);
  expect(cut.held.data.messages.get(1)).toBe(far.data.messages.get(1));
  expect(cut.held.data.hasMore).toBe(far.data.hasMore);
  expect(cut.shown).toHaveLength(1);

  // The messages between the window and the held ones are unknown, so the held ones are dropped.
  const other = play([reset(), added(message(8)), added(message(9)), status("waiting"), synced(2, 9)], far);
  expect(other.held.data.order).toEqual([8, 9]);
});

describe("attempts that fail", () => {
  test("dim what was shown until the next one begins", () => {
    const failed = play([part(1, "half"), retry(2), episode("retry"), synced(2, 1)], running);
    expect(failed.held.data.preview).toMatchObject({ stale: true, blocks: [{ text: "half" }] });
    expect(failed.held.data.retry?.attempt).toBe(2);

    const next = play(
      [{ type: "retry", retry: null }, episode("attempt", 1, 2), synced(3, 1), part(1, "again")],
      failed.held,
    );
    expect(next.held.data.preview).toMatchObject({ stale: false, blocks: [{ text: "again" }] });
    expect(next.held.data.retry).toBeNull();
  });

  test("a part clears the banner", () => {
    const { held } = play([retry(2), synced(2, 1), episode("attempt", 1, 2), part(1, "x")], running);
    expect(held.data.retry).toBeNull();
  });
});

test("a repeated beginning does not flash", () => {
  const { held } = play([part(1, "Word"), episode("lagged")], running);
  expect(held.data.preview).toMatchObject({ ghost: [{ text: "Word" }], blocks: [] });

  const replayed = play([part(1, "Wor")], held);
  expect(replayed.held.data.preview).toMatchObject({ ghost: null, blocks: [{ text: "Wor" }] });
  expect(withoutGhost(held.data).preview?.ghost).toBeNull();
});

test.each(["waiting", "error"])("a chat at rest (%s) has no preview", (rest) => {
  const { held } = play([part(1, "half"), status(rest), synced(2, 1)], running);
  expect(held.data.preview).toBeNull();
});

test("status clears what it contradicts", () => {
  const failed = play([{ type: "error", error: { message: "no", kind: "auth" } }, synced(2, 1)], running).held;
  expect([failed.data.status, failed.data.error?.kind]).toEqual(["error", "auth"]);

  const again = play([status("running"), synced(3, 1)], failed).held;
  expect(again.data.error).toBeNull();

  const asks = play(
    [
      status("requires_action"),
      { type: "action_required", tool_calls: [], deadline_at: null } as unknown as StreamEvent,
      synced(4, 1),
    ],
    again,
  ).held;
  expect(asks.data.action).not.toBeNull();
  expect(play([status("running"), synced(5, 1)], asks).held.data.action).toBeNull();
});

test("a lost connection takes its unfinished change and its preview along", () => {
  const cut = play([part(1, "half"), added(message(2))], running).held;
  const fresh = connected(cut);
  expect([fresh.pending.length, fresh.data.preview, fresh.data.order.length]).toEqual([0, null, 1]);
});

test("older pages join in front, and known rows stay the same objects", () => {
  const first = message(10);
  const data = withMessages(
    { ...EMPTY, messages: new Map([[10, first]]), order: [10], hasMore: true },
    [message(8), message(9), message(10, "user")],
    false,
  );
  expect(data.order).toEqual([8, 9, 10]);
  expect(data.messages.get(10)).toBe(first);
  expect(data.hasMore).toBe(false);
});

test("unknown events change nothing", () => {
  const { held, shown } = play(
    [{ type: "sparkles" } as unknown as StreamEvent, { type: "heartbeat", server_time: "" }],
    running,
  );
  expect(held).toBe(running);
  expect(shown).toEqual([]);
});

test("another attempt begins its age when it begins, also within a change", () => {
  const known: StreamEvent[] = [hello, reset(1), added(message(1, "user")), status("running"), synced(1, 1)];
  let held: Held = { data: EMPTY, pending: [] };
  for (const event of [...known, episode("attempt")]) held = take(held, event, NOW).held;
  // The page does not know how long the first one has been going on.
  expect(held.data.preview?.since).toBe(0);
  for (const event of [status("running"), episode("attempt", 1, 2), synced(2, 1)])
    held = take(held, event, NOW + 40_000).held;
  expect(held.data.preview?.since).toBe(NOW + 40_000);
  held = take(held, episode("attempt", 1, 3), NOW + 50_000).held;
  expect(held.data.preview?.since).toBe(NOW + 50_000);
});
