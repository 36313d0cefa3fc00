/**
 * From events of a chat's stream to what a client shows of it: the contract of every client (streaming.md).
 *
 * Pure. Everything up to `synced` is one change; only live parts change anything earlier. What the rest of the
 * application relies on (ui.md, O1 to O7) is tested in reducer.test.ts and reducer.fuzz.test.ts.
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
  /** What to send as `after_id` when connecting again. */
  afterId: number;
  snapshot: number;
  /** Server's clock less ours, in ms; countdowns use it. */
  clockSkew: number;
  /** The first window arrived. */
  loaded: boolean;
  /** Counts replaced histories: heights and places of before mean nothing. */
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

/** The published data and the change that is arriving. */
export interface Held {
  data: ChatData;
  pending: readonly StreamEvent[];
}

export interface Taken {
  held: Held;
  /** `data` may be shown now: at the end of a change, and after live parts. */
  publish: "no" | "soon" | "now";
  /** A part did not follow the one before: ask the server for a fresh start. */
  resync: boolean;
}

/** A new connection begins: preview, banner and the unfinished change of the old one are gone. */
export function connected(held: Held): Held {
  return { data: { ...held.data, preview: null, retry: null }, pending: [] };
}

/** Take in one event. `now` is the client's clock in ms. */
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
      return { held: { ...held, data: resetPreview(held.data, event) }, publish: "soon", resync: false };
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
      return { held: { data: commit(held, event), pending: [] }, publish: "now", resync: false };
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
  const next: Preview = { ...preview, lastSeq: event.seq, blocks, ghost: blocks.length > 0 ? null : preview.ghost };
  return { held: { ...held, data: { ...held.data, preview: next, retry: null } }, publish: "soon", resync: false };
}

function resetPreview(data: ChatData, event: Extract<StreamEvent, { type: "preview_reset" }>): ChatData {
  if (event.reason === "ended") return { ...data, preview: null };
  const repeats = event.reason === "lagged" || event.reason === "rebase";
  // A failed attempt stays on screen, dimmed, until the next one begins: its `retry` came with this reset.
  if (event.reason === "retry" && data.preview) return { ...data, preview: { ...data.preview, stale: true } };
  const ghost = repeats ? (data.preview?.blocks ?? null) : null;
  return { ...data, preview: emptyPreview([event.history_version, event.generation_attempt], ghost) };
}

function commit(held: Held, synced: Extract<StreamEvent, { type: "synced" }>): ChatData {
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
        data = change(data, event);
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
 * A new window, and what was held before its beginning: who reads far back stays there. History only ever loses its end,
 * so where the first row of the window was known, all rows before it are still what they were.
 */
function withOlder(before: ChatData, newest: Map<number, Message>, hasMore: boolean): Partial<ChatData> {
  const first = Math.min(...newest.keys());
  if (!before.messages.has(first)) return { ...inOrder(newest), hasMore };
  const older = before.order.filter((id) => id < first).flatMap((id) => before.messages.get(id) ?? []);
  const all = new Map([...older.map((one): [number, Message] => [one.id, one]), ...newest]);
  return { ...inOrder(all), hasMore: older.length > 0 ? before.hasMore : hasMore };
}

function change(data: ChatData, event: StreamEvent): ChatData {
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
      return resetPreview(data, event);
    default:
      return data;
  }
}

function inOrder(messages: Map<number, Message>): Pick<ChatData, "messages" | "order"> {
  const order = [...messages.keys()].sort((a, b) => a - b);
  return { messages, order };
}

/** Messages from an answer of the API: older pages, and what a send made. Known ids stay as they are. */
export function withMessages(data: ChatData, items: readonly Message[], hasMore?: boolean): ChatData {
  const messages = new Map(data.messages);
  for (const item of items) if (!messages.has(item.id)) messages.set(item.id, item);
  const known = messages.size === data.messages.size ? {} : inOrder(messages);
  return { ...data, ...known, hasMore: hasMore ?? data.hasMore };
}

/** The ghost of a repeated beginning goes after a moment, whether or not anything came. */
export function withoutGhost(data: ChatData): ChatData {
  if (!data.preview?.ghost) return data;
  return { ...data, preview: { ...data.preview, ghost: null } };
}
