/**
 * Random valid streams, cut into frames, with duplicates, gaps and reconnects, checked against a simple model of the
 * server. The invariants that components rely on (I1 to I6 below) must hold in every published state.
 */
import { expect, test } from "vitest";
import { type ChatData, connected, EMPTY, type Held, take } from "@/chat/reducer";
import type { Message, StreamEvent } from "@/chat/types";

/** A random number generator with a seed, so that a failure can be repeated. */
function random(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state ^ (state >>> 15), 0x2c1b3c6d) + 0x9e3779b9) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 12), 0x297a2d39);
    mixed ^= mixed >>> 15;
    return (mixed >>> 0) / 4294967296;
  };
}

const message = (id: number, role: string, text: string): Message =>
  ({
    id,
    role,
    content: [{ type: "text", text }],
    created_at: "2026-01-01T00:00:00Z",
    client_id: null,
  }) as unknown as Message;

/** The server: a chat that runs turns, and the events for each connection. */
class Server {
  messages: Message[] = [];
  status = "waiting";
  version = 1;
  attempt = 0;
  parts: string[] = [];
  private nextId = 1;
  readonly rand: () => number;

  constructor(rand: () => number) {
    this.rand = rand;
  }

  private sync(events: StreamEvent[]): StreamEvent[] {
    this.version += 1;
    const last = this.messages.at(-1)?.id ?? 0;
    return [
      ...events,
      {
        type: "synced",
        snapshot_version: this.version,
        history_version: this.version,
        queue_version: 1,
        last_message_id: last,
      },
    ];
  }

  private episode(reason: string): StreamEvent {
    this.parts = [];
    return { type: "preview_reset", history_version: this.version, generation_attempt: this.attempt, reason };
  }

  private statusEvent(): StreamEvent {
    return { type: "status", status: this.status, archived: false };
  }

  /** Open a new connection; return its first events. */
  join(afterId: number): StreamEvent[] {
    const hello: StreamEvent = {
      type: "hello",
      chat_id: "c",
      replica_id: "r",
      server_time: "2026-01-01T00:00:00Z",
      resume: "window",
    };
    const known = afterId > 0 && this.messages.some((one) => one.id === afterId);
    const sent = known ? this.messages.filter((one) => one.id > afterId) : this.messages;
    const replay = this.parts;
    const events: StreamEvent[] = [];
    if (!known) events.push({ type: "history_reset", count: sent.length, has_more: false, first_message_id: null });
    events.push(...sent.map((one): StreamEvent => ({ type: "message", message: one })), this.statusEvent());
    const live = this.status === "running";
    if (live) events.push(this.episode("history"));
    this.parts = replay;
    const parts = live ? replay.map((text, at): StreamEvent => this.part(at + 1, text)) : [];
    return [hello, ...this.sync(events), ...parts];
  }

  private part(seq: number, text: string): StreamEvent {
    return { type: "message_part", seq, role: "assistant", part: { type: "text", text } };
  }

  /** Make one random change; return its events. */
  step(): StreamEvent[] {
    const dice = this.rand();
    if (this.status === "waiting" || this.status === "error") {
      if (dice < 0.15 && this.messages.length > 2) {
        // An edit truncates the history, so the window is sent again.
        this.messages = this.messages.slice(0, 1 + Math.floor(this.rand() * (this.messages.length - 1)));
        return this.sync([
          { type: "history_reset", count: this.messages.length, has_more: false, first_message_id: null },
          ...this.messages.map((one): StreamEvent => ({ type: "message", message: one })),
        ]);
      }
      const user = message(this.nextId++, "user", "go");
      this.messages.push(user);
      this.status = "running";
      this.attempt = 1;
      return this.sync([{ type: "message", message: user }, this.statusEvent(), this.episode("history")]);
    }
    if (dice < 0.7) {
      const text = ["word ", "\n\n", " ", "x"][Math.floor(this.rand() * 4)] ?? "x";
      this.parts.push(text);
      return [this.part(this.parts.length, text)];
    }
    if (dice < 0.78) {
      this.attempt += 1;
      const failed: StreamEvent = {
        type: "retry",
        retry: { attempt: this.attempt, delay_ms: 1, error: "x", retrying_at: "2026-01-01T00:00:00Z" },
      };
      const first = this.sync([failed, this.episode("retry")]);
      return [...first, ...this.sync([{ type: "retry", retry: null }, this.episode("attempt")])];
    }
    if (dice < 0.84) {
      const shown = [...this.parts];
      const again = this.episode("lagged");
      this.parts = shown;
      return [again, ...shown.map((text, at) => this.part(at + 1, text))];
    }
    const step = message(this.nextId++, "assistant", this.parts.join("") || "empty");
    this.messages.push(step);
    const ends = this.rand() < 0.5;
    if (!ends) return this.sync([{ type: "message", message: step }, this.episode("history")]);
    this.status = this.rand() < 0.2 ? "error" : "waiting";
    const events: StreamEvent[] = [{ type: "message", message: step }, this.statusEvent()];
    if (this.status === "error") events.push({ type: "error", error: { message: "no" } });
    events.push(this.episode("ended"));
    return this.sync(events);
  }
}

const textOf = (data: ChatData) =>
  (data.preview?.blocks ?? []).map((block) => ("text" in block ? block.text : "")).join("");

function check(data: ChatData, before: ChatData | null, wasPart: boolean): void {
  // I2: the order is ascending.
  expect([...data.order].sort((a, b) => a - b)).toEqual(data.order);
  // I5: a chat at rest has no preview.
  if (data.status === "waiting" || data.status === "error") expect(data.preview).toBeNull();
  if (!before) return;
  // I1: either a committed step or its preview is shown, never both and never neither.
  const committed = data.order.some((id) => !before.messages.has(id) && data.messages.get(id)?.role === "assistant");
  if (committed) expect(textOf(data)).toBe("");
  const vanished =
    textOf(before).trim() !== "" && textOf(data) === "" && !before.preview?.stale && !data.preview?.ghost;
  if (vanished) expect(committed).toBe(true);
  // I3: messages keep their identity until a reset.
  if (before.resets === data.resets) for (const [id, one] of before.messages) expect(data.messages.get(id)).toBe(one);
  if (!wasPart) return;
  // I6: a live part changes only the preview.
  expect(data.messages).toBe(before.messages);
  expect(data.order).toBe(before.order);
  expect(data.queue).toBe(before.queue);
  // I4: the preview of an episode only grows.
  const same = before.preview && data.preview && before.preview.episode.join() === data.preview.episode.join();
  if (same && !data.preview?.ghost && !before.preview?.ghost)
    expect(textOf(data).startsWith(textOf(before)) || textOf(data) === "").toBe(true);
}

test.each(Array.from({ length: 60 }, (_, seed) => seed))("a client ends with what the server has, seed %i", (seed) => {
  const rand = random(seed + 1);
  const server = new Server(rand);
  let held: Held = { data: EMPTY, pending: [] };
  let shown: ChatData | null = null;
  const feed = (events: StreamEvent[], cutAt = Number.POSITIVE_INFINITY) => {
    for (const [at, event] of events.entries()) {
      if (at >= cutAt) return false;
      // A relay that reconnects may send parts twice.
      const repeats = event.type === "message_part" && rand() < 0.05 ? 2 : 1;
      for (let n = 0; n < repeats; n += 1) {
        const taken = take(held, event, 0);
        held = taken.held;
        expect(taken.resync).toBe(false);
        if (taken.publish !== "no") {
          check(held.data, shown, event.type === "message_part");
          shown = held.data;
        }
      }
    }
    return true;
  };
  const join = () => {
    held = connected(held);
    shown = null;
    feed(server.join(held.data.afterId));
  };
  join();
  for (let turn = 0; turn < 120; turn += 1) {
    const events = server.step();
    const cut = rand() < 0.06 ? Math.floor(rand() * events.length) : Number.POSITIVE_INFINITY;
    if (!feed(events, cut)) join();
  }
  join();

  expect(held.data.order).toEqual(server.messages.map((one) => one.id));
  expect(held.data.order.map((id) => held.data.messages.get(id)?.content)).toEqual(
    server.messages.map((one) => one.content),
  );
  expect(held.data.status).toBe(server.status);
});

test("what an old chat's connection still says changes nothing of the new one (O4)", () => {
  // States are immutable: applying an event to an old state does not change a new one.
  const old: Held = { data: EMPTY, pending: [] };
  const fresh: Held = { data: EMPTY, pending: [] };
  take(old, { type: "status", status: "running", archived: false }, 0);
  expect(fresh).toEqual({ data: EMPTY, pending: [] });
});
