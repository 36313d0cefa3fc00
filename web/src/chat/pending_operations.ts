/**
 * Pending operations: started, but not yet confirmed by the stream. They are applied to the data only for display, so
 * removing one restores the exact earlier state.
 */
import type { SendBody } from "@/api/types.gen";
import type { ChatData } from "@/chat/reducer";
import type { Message, Part, Queued, Status } from "@/chat/types";
import { spaced, tokenOf } from "./file_references";

export type Content = SendBody["content"];

interface Base {
  /** The `client_id` of sends; unique among pending operations. */
  id: string;
  /** The snapshot version in the server's response. The stream shows the operation when it reaches this version. */
  answered?: number;
  failed?: string;
}

/** A message to send. It has an `id` from the start, so that no repetition takes effect twice. */
export interface PendingSend extends Base {
  kind: "send";
  content: Content;
  /** The content, for the row that is shown meanwhile. */
  parts: Part[];
  at: string;
  queued: boolean;
  body: SendBody;
  /** Whether it waits for the connection. It is sent when the server can be reached. */
  waits?: boolean;
}

export type PendingOp =
  | PendingSend
  | (Base & { kind: "delete"; queuedId: number })
  | (Base & { kind: "edit_queued"; queuedId: number; parts: Part[] })
  | (Base & { kind: "move"; order: number[] })
  | (Base & { kind: "promote"; queuedId: number })
  | (Base & { kind: "stop" })
  | (Base & { kind: "start" })
  | (Base & { kind: "edit"; messageId: number; parts: Part[]; at: string });

/** Return the operations that the data does not show yet. */
export function settle(pending: readonly PendingOp[], data: ChatData): readonly PendingOp[] {
  const left = pending.filter((op) => !isSettled(op, data));
  return left.length === pending.length ? pending : left;
}

function isSettled(op: PendingOp, data: ChatData): boolean {
  // The response was lost, but the message arrived.
  if (op.failed) return op.kind === "send" && hasClientId(data, op.id);
  const seen = op.answered !== undefined && data.snapshot >= op.answered;
  switch (op.kind) {
    case "send":
      return seen || hasClientId(data, op.id);
    case "delete":
    case "promote":
      return !data.queue.some((one) => one.id === op.queuedId);
    case "move":
      return seen || (op.answered !== undefined && isOrdered(data, op.order));
    case "edit_queued":
    case "edit":
    case "start":
      return seen;
    case "stop":
      return seen || data.status === "waiting" || data.status === "error";
  }
}

/** Return the queue in the order in which it is sent: while a turn runs, steering messages are read before it ends. */
function inTurn({ queue, status }: ChatData): readonly Queued[] {
  if (status !== "running" && status !== "requires_action") return queue;
  return [...queue.filter((one) => one.steer), ...queue.filter((one) => !one.steer)];
}

/** Return whether the queue has this order. Messages may have been removed, or added at the end. */
function isOrdered(data: ChatData, order: readonly number[]): boolean {
  const ids = inTurn(data).map((one) => one.id);
  const left = order.filter((id) => ids.includes(id));
  return left.every((id, place) => ids[place] === id);
}

function hasClientId(data: ChatData, id: string): boolean {
  if (data.queue.some((one) => one.client_id === id)) return true;
  for (let at = data.order.length - 1; at >= 0 && at > data.order.length - 60; at -= 1) {
    if (data.messages.get(data.order[at] ?? 0)?.client_id === id) return true;
  }
  return false;
}

export interface QueueRow {
  /** Null until the server has accepted it. */
  id: number | null;
  key: string;
  parts: readonly Part[];
  modelConfigId: string | null;
  reasoningEffort: string | null;
  faint: boolean;
  /** Whether it is added to the running turn at its next step. */
  steers: boolean;
}

/** Return the queue with pending operations applied. */
export function shownQueue(data: ChatData, pending: readonly PendingOp[]): QueueRow[] {
  const hidden = new Set<number>();
  const texts = new Map<number, Part[]>();
  let order: number[] | null = null;
  for (const op of pending) {
    if (op.kind === "delete" || op.kind === "promote") hidden.add(op.queuedId);
    if (op.kind === "edit_queued") texts.set(op.queuedId, op.parts);
    if (op.kind === "move") order = op.order;
    if (op.kind === "edit") return [];
  }
  const rows = inTurn(data)
    .filter((one) => !hidden.has(one.id))
    .map((one) => queueRow(one, texts.get(one.id)));
  if (order) {
    const places = new Map(order.map((id, place) => [id, place]));
    rows.sort((a, b) => (places.get(a.id ?? -1) ?? 1e9) - (places.get(b.id ?? -1) ?? 1e9));
  }
  const sends = pending.filter((op): op is PendingSend => op.kind === "send" && op.queued && !isOnHold(op));
  // As on the server, the newest interrupting message is first.
  const first = sends.filter(interrupts).reverse();
  const later = sends.filter((op) => !interrupts(op)).map(pendingRow);
  const firstLater = rows.findIndex((row) => !row.steers);
  const end = later.some((row) => row.steers) && firstLater >= 0 ? firstLater : rows.length;
  return [
    ...first.map(pendingRow),
    ...rows.slice(0, end),
    ...later.filter((row) => row.steers),
    ...rows.slice(end),
    ...later.filter((row) => !row.steers),
  ];
}

/** Return whether the message is neither sent nor being sent. */
function isOnHold(op: PendingSend): boolean {
  return Boolean(op.failed || op.waits);
}

function interrupts(op: PendingSend): boolean {
  return op.body.busy_behavior === "interrupt";
}

function queueRow(one: Queued, parts: Part[] | undefined): QueueRow {
  return {
    id: one.id,
    key: `q${one.id}`,
    parts: parts ?? one.content,
    modelConfigId: one.model_config_id,
    reasoningEffort: one.reasoning_effort,
    faint: parts !== undefined,
    steers: one.steer,
  };
}

function pendingRow(op: PendingSend): QueueRow {
  return {
    id: null,
    key: op.id,
    parts: op.parts,
    modelConfigId: op.body.model_config_id ?? null,
    reasoningEffort: op.body.reasoning_effort ?? null,
    faint: true,
    steers: op.body.busy_behavior === "steer",
  };
}

/** Return the status with pending operations applied. */
export function shownStatus(data: ChatData, pending: readonly PendingOp[]): Status {
  let status = data.status;
  for (const op of pending) {
    if (op.failed || (op.kind === "send" && op.waits)) continue;
    if (op.kind === "stop" || op.kind === "promote" || (op.kind === "send" && op.queued && interrupts(op))) {
      if (status === "running" || status === "requires_action") status = "interrupting";
    } else if (op.kind === "start" || op.kind === "edit" || (op.kind === "send" && !op.queued)) status = "running";
  }
  return status;
}

/** Return pending messages that are shown as rows at the end of the timeline. */
export function sendRows(pending: readonly PendingOp[]): PendingSend[] {
  return pending.filter((op): op is PendingSend => op.kind === "send" && (!op.queued || isOnHold(op)));
}

/** Return the ids of the shown messages: without those that a pending edit replaces. */
export function shownOrder(data: ChatData, pending: readonly PendingOp[]): readonly number[] {
  const edit = pending.find((op) => op.kind === "edit");
  if (edit?.kind !== "edit" || edit.failed) return data.order;
  return data.order.filter((id) => id < edit.messageId);
}

/** Return the text of a message, with references in the form that the composer uses. */
export function plainText(parts: readonly Part[]): string {
  return spaced(parts)
    .map((piece) => (typeof piece === "string" ? piece : tokenOf(piece)))
    .join("");
}

export function filesOf(parts: readonly Part[]) {
  return parts.filter((part) => part.type === "file");
}

/** Return a pending message in the form of a stored one, for its row. */
export function asMessage(op: PendingSend): Message {
  return {
    id: 0,
    chat_id: "",
    role: "user",
    content: op.parts,
    created_at: op.at,
    created_by: null,
    model_config_id: null,
    reasoning_effort: null,
    client_id: op.id,
    usage: null,
    context_tokens: null,
    finish_reason: null,
    cost_micros: null,
    runtime_ms: null,
  };
}

/** Move one id to the position of another. Return the new order and the id that follows the moved one; null if nothing moves. */
export function moveInOrder(
  order: readonly number[],
  moved: number,
  other: number | undefined,
): { order: number[]; before: number | null } | null {
  const to = other === undefined ? -1 : order.indexOf(other);
  if (to < 0 || moved === other || !order.includes(moved)) return null;
  const changed = order.filter((id) => id !== moved);
  changed.splice(to, 0, moved);
  return { order: changed, before: changed[to + 1] ?? null };
}
