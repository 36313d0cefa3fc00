/**
 * The reducer from the events of a chat's stream to the data that a client shows (docs/api/streams.md).
 *
 * Pure. The events up to `synced` are one change; only live parts take effect before it. The invariants that the rest
 * of the application relies on are tested in reducer.test.ts and reducer.fuzz.test.ts.
 */
import { appendPart, emptyPreview, type Preview } from "@/chat/preview";
import type { Action, ChatError, Message, Queued, Retry, Status, StreamEvent } from "@/chat/types";

export interface ChatData {
  messages: ReadonlyMap<number, Message>;
  order: readonly number[];
  hasMore: boolean;
  status: Status;
  archived: boolean;
  queue: readonly Queued[];
  error: ChatError | null;
  retry: Retry | null;
  action: Action | null;
  preview: Preview | null;
  /** The value of `after_id` for the next connection. */
  afterId: number;
  snapshot: number;
  /** The server's clock minus the client's, in ms; used by countdowns. */
  clockSkew: number;
  /** Whether the first window has arrived. */
  loaded: boolean;
  /** The number of history resets. After a reset, earlier row heights and positions are invalid. */
  resets: number;
}

export const EMPTY: ChatData = {
  messages: new Map(),
  order: [],
  hasMore: false,
  status: "waiting",
  archived: false,
  queue: [],
  error: null,
  retry: null,
  action: null,
  preview: null,
  afterId: 0,
  snapshot: 0,
  clockSkew: 0,
  loaded: false,
  resets: 0,
};

/** The published data, and the change that is being received. */
export interface Held {
  data: ChatData;
  pending: readonly StreamEvent[];
}

export interface Taken {
  held: Held;
  /** When to publish `data`: at the end of a change, and after live parts. */
  publish: "no" | "soon" | "now";
  /** A part is missing, so the client has to request a resync. */
  resync: boolean;
}

/** Start a new connection: the preview, the retry banner and the unfinished change of the old one are dropped. */
export function connected(held: Held): Held {
  return { data: { ...held.data, preview: null, retry: null }, pending: [] };
}

/** Apply one event. `now` is the client's clock in ms. */
export function take(held: Held, event: StreamEvent, now: number): Taken {
  const quiet = (next: Held): Taken => ({ held: next, publish: "no", resync: false });
  switch (event.type) {
    case "hello": {
      const fresh = connected(held);
      const skew = Date.parse(event.server_time) - now;
      return quiet({ ...fresh, data: { ...fresh.data, clockSkew: Number.isFinite(skew) ? skew : 0 } });
    }
    case "message_part":
      return takePart(held, event, now);
    case "preview_reset":
      if (held.pending.length > 0) return quiet({ ...held, pending: [...held.pending, event] });
      return { held: { ...held, data: resetPreview(held.data, event, now) }, publish: "soon", resync: false };
    case "preview_truncated": {
      const preview = held.data.preview;
      if (!preview) return quiet(held);
      return {
        held: { ...held, data: { ...held.data, preview: { ...preview, truncated: true } } },
        publish: "soon",
        resync: false,
      };
    }
    case "synced":
      return { held: { data: commit(held, event, now), pending: [] }, publish: "now", resync: false };
    case "history_reset":
    case "message":
    case "queue_update":
    case "status":
    case "error":
    case "action_required":
    case "retry":
      return quiet({ ...held, pending: [...held.pending, event] });
    default:
      return quiet(held);
  }
}

function takePart(held: Held, event: Extract<StreamEvent, { type: "message_part" }>, now: number): Taken {
  const preview = held.data.preview;
  const first = event.seq - (event.n ?? 1);
  if (!preview || preview.truncated) return { held, publish: "no", resync: !preview };
  if (event.seq <= preview.lastSeq) return { held, publish: "no", resync: false };
  if (first !== preview.lastSeq) return { held, publish: "no", resync: true };
  const at = () => new Date(now + held.data.clockSkew).toISOString();
  const blocks = appendPart(preview.blocks, event.part, at);
  const ghost = blocks.length > 0 ? null : preview.ghost;
  const next: Preview = { ...preview, lastSeq: event.seq, heardAt: now, blocks, ghost };
  return { held: { ...held, data: { ...held.data, preview: next, retry: null } }, publish: "soon", resync: false };
}

function resetPreview(data: ChatData, event: Extract<StreamEvent, { type: "preview_reset" }>, now: number): ChatData {
  if (event.reason === "ended") return { ...data, preview: null };
  const repeats = event.reason === "lagged" || event.reason === "rebase";
  // The preview of a failed attempt stays, dimmed, until the next attempt starts. Its `retry` arrived before this reset.
  if (event.reason === "retry" && data.preview) return { ...data, preview: { ...data.preview, stale: true } };
  const ghost = repeats ? (data.preview?.blocks ?? null) : null;
  const [version, attempt] = data.preview?.episode ?? [];
  const isNext = version === event.history_version && attempt !== event.generation_attempt;
  const episode = [event.history_version, event.generation_attempt] as const;
  return { ...data, preview: emptyPreview(episode, ghost, isNext ? now : 0) };
}

function commit(held: Held, synced: Extract<StreamEvent, { type: "synced" }>, now: number): ChatData {
  let data = held.data;
  let collected: Map<number, Message> | null = null;
  let isWindow = false;
  for (const event of held.pending) {
    switch (event.type) {
      case "history_reset":
        collected = new Map();
        isWindow = true;
        data = { ...data, hasMore: event.has_more, resets: data.resets + (data.loaded ? 1 : 0) };
        break;
      case "message":
        collected ??= new Map(data.messages);
        if (!collected.has(event.message.id)) collected.set(event.message.id, event.message);
        break;
      default:
        data = change(data, event, now);
    }
  }
  const known = collected === null ? {} : isWindow ? withOlder(held.data, collected, data.hasMore) : inOrder(collected);
  const rests = data.status === "waiting" || data.status === "error";
  return {
    ...data,
    ...known,
    preview: rests ? null : data.preview,
    retry: rests ? null : data.retry,
    snapshot: synced.snapshot_version,
    afterId: synced.last_message_id,
    loaded: true,
  };
}

/**
 * Combine a new window with older messages that the client holds, so that the scroll position is kept. A history only
 * loses its end: if the first message of the window is known, all messages before it are unchanged.
 */
function withOlder(before: ChatData, newest: Map<number, Message>, hasMore: boolean): Partial<ChatData> {
  const first = Math.min(...newest.keys());
  if (!before.messages.has(first)) return { ...inOrder(newest), hasMore };
  const older = before.order.filter((id) => id < first).flatMap((id) => before.messages.get(id) ?? []);
  const all = new Map([...older.map((one): [number, Message] => [one.id, one]), ...newest]);
  return { ...inOrder(all), hasMore: older.length > 0 ? before.hasMore : hasMore };
}

function change(data: ChatData, event: StreamEvent, now: number): ChatData {
  switch (event.type) {
    case "queue_update":
      return { ...data, queue: event.queued_messages };
    case "status": {
      const status = event.status as Status;
      return {
        ...data,
        status,
        archived: event.archived,
        error: status === "error" ? data.error : null,
        action: status === "requires_action" ? data.action : null,
      };
    }
    case "error":
      return { ...data, status: "error", error: event.error, preview: null, retry: null };
    case "action_required":
      return { ...data, action: event };
    case "retry": {
      const preview = event.retry && data.preview ? { ...data.preview, stale: true } : data.preview;
      return { ...data, retry: event.retry, preview };
    }
    case "preview_reset":
      return resetPreview(data, event, now);
    default:
      return data;
  }
}

function inOrder(messages: Map<number, Message>): Pick<ChatData, "messages" | "order"> {
  const order = [...messages.keys()].sort((a, b) => a - b);
  return { messages, order };
}

/** Add messages from an API response: older pages, and sent messages. Messages with known ids are not replaced. */
export function withMessages(data: ChatData, items: readonly Message[], hasMore?: boolean): ChatData {
  const messages = new Map(data.messages);
  for (const item of items) if (!messages.has(item.id)) messages.set(item.id, item);
  const known = messages.size === data.messages.size ? {} : inOrder(messages);
  return { ...data, ...known, hasMore: hasMore ?? data.hasMore };
}

/** Drop the earlier blocks of a replayed preview. Called after a delay, even if no part has arrived. */
export function withoutGhost(data: ChatData): ChatData {
  if (!data.preview?.ghost) return data;
  return { ...data, preview: { ...data.preview, ghost: null } };
}
