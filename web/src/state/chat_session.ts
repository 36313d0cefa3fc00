/**
 * One open chat: its store, its stream and its operations. Components read the store and call the methods; only this
 * class writes to the store.
 */
import { createStore, type StoreApi } from "zustand/vanilla";
import { hasReason } from "@/api/access_reasons";
import * as api from "@/api/chats";
import { hasCode, isAway, isStatus, sentence } from "@/api/errors";
import { newId } from "@/api/id";
import type { EditBody, QueuedPatchBody, SendBody } from "@/api/types.gen";
import {
  type Content,
  moveInOrder,
  type PendingOp,
  type PendingSend,
  type QueueRow,
  settle,
  shownQueue,
  shownStatus,
} from "@/chat/pending_operations";
import { type ChatData, connected, EMPTY, type Held, take, withMessages, withoutGhost } from "@/chat/reducer";
import { isActive, type Part, type StreamEvent } from "@/chat/types";
import { backoff } from "@/lib/backoff";
import { Outbox } from "@/state/outbox";
import { browserHost, Connection, type ConnectionState, type Host, INITIAL_CONNECTION } from "./stream_connection";

const PUBLISH_MS = 33;
const RESYNC_MS = 10_000;
const READ_MS = 1_000;
const GHOST_MS = 250;
const IDLE_CLOSE_MS = 5 * 60_000;
export const PAGE = 50;
// The page size while loading back to an old message: the maximum of the server.
const LARGE_PAGE = 200;
const MOST_PAGES = 200;

export interface ChatSessionState {
  data: ChatData;
  pending: readonly PendingOp[];
  conn: ConnectionState;
  older: "idle" | "loading" | "error";
}

/** The outcome of a send, for the composer. */
export type SendOutcome = "sent" | "queue_full" | "failed";

export class ChatSession {
  readonly id: string;
  readonly store: StoreApi<ChatSessionState>;
  private held: Held = { data: EMPTY, pending: [] };
  private readonly connection: Connection;
  private readonly host: Host;
  private publishTimer: unknown = null;
  private hiddenTimer: unknown = null;
  private lastResync = Number.NEGATIVE_INFINITY;
  private lastRead = Number.NEGATIVE_INFINITY;
  private readId = 0;
  private users = 0;
  private loading: Promise<void> | null = null;
  private sending: Promise<unknown> = Promise.resolve();
  private outbox: Outbox | null = null;
  /** Ends the wait of the message that waits for the connection. */
  private wake: (() => void) | null = null;
  /** Scrolls the timeline to a message. Set by the timeline while it is mounted. */
  onShow: ((messageId: number) => void) | null = null;

  constructor(id: string, host: Host = browserHost) {
    this.id = id;
    this.host = host;
    this.store = createStore<ChatSessionState>(() => ({
      data: EMPTY,
      pending: [],
      conn: INITIAL_CONNECTION,
      older: "idle",
    }));
    this.connection = new Connection(
      {
        path: `/chats/${encodeURIComponent(id)}/stream`,
        query: () => ({ mark_read: false, after_id: this.held.data.afterId || undefined }),
        onOpen: () => {
          this.held = connected(this.held);
        },
        onFrame: (events) => this.frame(events),
        onState: (conn) => {
          this.store.setState({ conn });
          if (conn.phase === "live") this.wake?.();
        },
      },
      host,
    );
  }

  /** Follow the chat while a component shows it. Return a function that ends this. */
  open(): () => void {
    this.users += 1;
    this.connection.connect();
    return () => {
      this.users -= 1;
      // Delayed, because another component often opens the same chat right away.
      this.host.setTimer(() => this.users === 0 && this.connection.close(), 1_000);
    };
  }

  /** Whether a component shows the chat, or a message is still to be sent. */
  get isNeeded(): boolean {
    return this.users > 0 || this.store.getState().pending.some((op) => op.kind === "send");
  }

  reconnect(): void {
    if (this.users > 0) this.connection.connect();
  }

  /** Note that the tab was hidden or shown. A hidden tab with an idle chat needs no connection. */
  visible(isVisible: boolean): void {
    this.host.clearTimer(this.hiddenTimer);
    if (isVisible) {
      this.reconnect();
      return;
    }
    this.hiddenTimer = this.host.setTimer(() => {
      if (!isActive(this.held.data.status)) this.connection.close();
    }, IDLE_CLOSE_MS);
  }

  close(): void {
    this.connection.close();
  }

  /** Mark the chat as read up to a message. */
  markRead(messageId: number): void {
    const now = this.host.now();
    // An administrator who reads another user's chat has no read cursor.
    if (hasReason(this.id)) return;
    if (messageId <= this.readId || now - this.lastRead < READ_MS) return;
    this.readId = messageId;
    this.lastRead = now;
    if (!this.connection.send({ type: "read", message_id: messageId })) {
      api.markRead(this.id, messageId).catch(() => {
        this.readId = 0;
      });
    }
  }

  private frame(events: StreamEvent[]): void {
    let publish: "no" | "soon" | "now" = "no";
    for (const event of events) {
      const taken = take(this.held, event, this.host.now());
      this.held = taken.held;
      if (taken.resync) this.resync();
      if (taken.publish === "now") {
        publish = "now";
        this.publish();
      } else if (taken.publish === "soon" && publish === "no") publish = "soon";
      else if (taken.publish === "soon") publish = "soon";
    }
    if (publish === "soon") this.publishSoon();
    if (this.held.data.preview?.ghost) {
      this.host.setTimer(() => {
        this.held = { ...this.held, data: withoutGhost(this.held.data) };
        this.publishSoon();
      }, GHOST_MS);
    }
  }

  private publish(): void {
    this.host.clearTimer(this.publishTimer);
    this.publishTimer = null;
    const data = this.held.data;
    this.store.setState((state) => ({ data, pending: settle(state.pending, data) }));
  }

  private publishSoon(): void {
    this.publishTimer ??= this.host.setTimer(() => this.publish(), PUBLISH_MS);
  }

  private resync(): void {
    const now = this.host.now();
    if (now - this.lastResync < RESYNC_MS) return;
    this.lastResync = now;
    // Reconnects, because a `resync` frame returns stored messages, but not the parts of the running step.
    this.connection.close();
    this.connection.connect();
  }

  /** Load the page before the oldest loaded message. A concurrent call waits for the same page. */
  loadOlder(limit = PAGE): Promise<void> {
    this.loading ??= this.loadPage(limit).finally(() => {
      this.loading = null;
    });
    return this.loading;
  }

  private async loadPage(limit: number): Promise<void> {
    const { data } = this.store.getState();
    const first = data.order[0];
    if (!data.hasMore || first === undefined) return;
    this.store.setState({ older: "loading" });
    try {
      const page = await api.listMessages(this.id, { before_id: first, limit });
      // The history was reset meanwhile, so this page is outdated.
      if (this.held.data.order[0] === first) {
        this.held = { ...this.held, data: withMessages(this.held.data, page.items, page.has_more) };
      }
      this.store.setState({ older: "idle" });
      this.publish();
    } catch {
      this.store.setState({ older: "error" });
    }
  }

  /** Load older pages until this message is loaded. Return false if it does not exist or cannot be loaded. */
  async loadUntil(messageId: number): Promise<boolean> {
    for (let pages = 0; pages < MOST_PAGES; pages += 1) {
      const { data, older } = this.store.getState();
      if (data.messages.has(messageId)) return true;
      if (!data.hasMore || (data.order[0] ?? 0) < messageId || (older === "error" && pages > 0)) return false;
      await this.loadOlder(LARGE_PAGE);
    }
    return false;
  }

  // Operations. Each is shown immediately and reverted if it fails.

  private begin(op: PendingOp): void {
    this.store.setState((state) => ({ pending: [...state.pending, op] }));
  }

  private update(id: string, change: Partial<PendingOp>): void {
    this.store.setState((state) => ({
      pending: settle(
        state.pending.map((op) => (op.id === id ? ({ ...op, ...change } as PendingOp) : op)),
        state.data,
      ),
    }));
  }

  private end(id: string): void {
    this.store.setState((state) => ({ pending: state.pending.filter((op) => op.id !== id) }));
  }

  private async run<T>(op: PendingOp, act: () => Promise<T>, version: (answer: T) => number | undefined): Promise<T> {
    this.begin(op);
    try {
      const answer = await act();
      this.update(op.id, { answered: version(answer) ?? this.held.data.snapshot });
      return answer;
    } catch (error) {
      this.end(op.id);
      throw error;
    }
  }

  /** Send a message. The messages of one chat are sent one after the other. */
  send(body: SendBody, parts: Part[], clientId: string): Promise<SendOutcome> {
    const { data, pending, conn } = this.store.getState();
    const status = shownStatus(data, pending);
    const busy = isActive(status) || (data.status === "error" && data.queue.length > 0);
    // An interrupting message waits only until the turn has stopped. In an idle chat it runs immediately.
    const stops = status === "running" || status === "interrupting";
    const interrupts = body.busy_behavior === "interrupt";
    const op: PendingSend = {
      kind: "send",
      id: clientId,
      content: body.content as Content,
      parts,
      at: new Date(this.host.now()).toISOString(),
      queued: interrupts ? stops : busy,
      body: { ...body, client_id: clientId },
      // The connection is lost, or another message waits.
      waits: conn.phase === "backoff" || pending.some((one) => one.kind === "send" && one.waits),
    };
    this.begin(op);
    this.outbox?.put(op);
    return this.dispatch(op);
  }

  /** Send the messages that were not confirmed when the page was left. Called once the user is known. */
  restore(userId: string): void {
    if (this.outbox) return;
    this.outbox = new Outbox(userId, this.id);
    for (const op of this.outbox.load(this.host.now())) {
      this.begin(op);
      if (!op.failed) void this.dispatch(op, true);
    }
  }

  /** Repeat a failed send with the same client id, so that it cannot take effect twice. */
  resend(id: string): Promise<SendOutcome> {
    const op = this.store.getState().pending.find((one) => one.id === id);
    if (op?.kind !== "send") return Promise.resolve("failed");
    const again: PendingSend = { ...op };
    delete again.failed;
    this.outbox?.put(again);
    this.store.setState((state) => ({ pending: state.pending.map((one) => (one.id === id ? again : one)) }));
    return this.dispatch(again);
  }

  /** Drop a send that failed or waits. Return it, so that its text can be restored in the composer. */
  discard(id: string): PendingSend | null {
    const op = this.store.getState().pending.find((one) => one.id === id);
    this.end(id);
    this.outbox?.remove(id);
    this.wake?.();
    return op?.kind === "send" ? op : null;
  }

  private dispatch(op: PendingSend, isRestored = false): Promise<SendOutcome> {
    const outcome = this.sending.then(() => this.deliver(op, isRestored));
    this.sending = outcome.catch(() => {});
    return outcome;
  }

  /** Send a message, and repeat this until the server can be reached or the user discards the message. */
  private async deliver(op: PendingSend, isRestored: boolean): Promise<SendOutcome> {
    for (let attempt = 0; this.isPending(op.id); attempt += 1) {
      try {
        const answer = await api.sendMessage(this.id, op.body);
        const { snapshot_version: answered } = answer.chat;
        this.update(op.id, { answered, queued: answer.queued, waits: false } as Partial<PendingOp>);
        break;
      } catch (error) {
        if (isAway(error)) {
          // Those behind it wait as well.
          this.store.setState(({ pending }) => ({
            pending: pending.map((one) =>
              one.kind === "send" && one.answered === undefined && !one.failed ? { ...one, waits: true } : one,
            ),
          }));
          await this.untilBack(attempt);
          continue;
        }
        // After a wait or a reload, the composer does not take the text back, so the row keeps it.
        if (hasCode(error, "queue_full") && attempt === 0 && !isRestored) {
          this.end(op.id);
          this.outbox?.remove(op.id);
          return "queue_full";
        }
        const failed = { failed: sentence(error), waits: false };
        this.update(op.id, failed as Partial<PendingOp>);
        this.outbox?.put({ ...op, ...failed });
        return "failed";
      }
    }
    this.outbox?.remove(op.id);
    return "sent";
  }

  /** Wait until the stream is connected again. A message is also tried now and then, in case only the stream fails. */
  private untilBack(attempt: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = this.host.setTimer(() => this.wake?.(), backoff(attempt, this.host.random()));
      this.wake = () => {
        this.wake = null;
        this.host.clearTimer(timer);
        resolve();
      };
    });
  }

  private isPending(id: string): boolean {
    return this.store.getState().pending.some((op) => op.id === id);
  }

  stop(): Promise<void> {
    return this.run({ kind: "stop", id: newId() }, () => api.interrupt(this.id), versionOf).then(
      () => {},
      (error: unknown) => {
        // The turn has already ended; the stream reports how.
        if (!isStatus(error, 409)) throw error;
      },
    );
  }

  async retry(): Promise<void> {
    await this.run({ kind: "start", id: newId() }, () => api.retryTurn(this.id), versionOf);
  }

  /** End the silent model call, the retry delay or the running tools. The turn goes on. */
  async nudge(): Promise<void> {
    await api.nudge(this.id);
  }

  async compact(): Promise<void> {
    await this.run({ kind: "start", id: newId() }, () => api.compact(this.id), versionOf);
  }

  async repair(): Promise<void> {
    await api.reconcileInvalid(this.id);
  }

  async edit(messageId: number, body: EditBody, parts: Part[]): Promise<void> {
    const at = new Date(this.host.now()).toISOString();
    await this.run(
      { kind: "edit", id: newId(), messageId, parts, at },
      () => api.editMessage(this.id, messageId, body),
      (answer) => answer.chat.snapshot_version,
    );
  }

  async deleteQueued(queuedId: number): Promise<void> {
    const gone = () => undefined;
    await this.run({ kind: "delete", id: newId(), queuedId }, () => api.deleteQueued(this.id, queuedId), gone);
  }

  /** Delete all messages of the queue. Return those that had not been sent yet, and the first error. */
  async takeBackQueued(): Promise<{ rows: QueueRow[]; error: unknown }> {
    const { data, pending } = this.store.getState();
    const rows = shownQueue(data, pending).filter((row) => row.id !== null);
    const ends = await Promise.allSettled(rows.map((row) => this.deleteQueued(row.id as number)));
    const failed = ends.find((end) => end.status === "rejected");
    return { rows: rows.filter((_, place) => ends[place]?.status === "fulfilled"), error: failed?.reason ?? null };
  }

  async editQueued(queuedId: number, body: QueuedPatchBody, parts: Part[]): Promise<void> {
    const op: PendingOp = { kind: "edit_queued", id: newId(), queuedId, parts };
    const version = this.nextVersion();
    await this.run(
      op,
      () => api.editQueued(this.id, queuedId, body),
      () => version,
    );
  }

  async promote(queuedId: number): Promise<void> {
    const op: PendingOp = { kind: "promote", id: newId(), queuedId };
    await this.run(
      op,
      () => api.promoteQueued(this.id, queuedId),
      (answer) => answer.chat.snapshot_version,
    );
  }

  private queueOrder(): number[] {
    const { data, pending } = this.store.getState();
    return shownQueue(data, pending).flatMap((row) => (row.id === null ? [] : [row.id]));
  }

  /** Move a queued message by one position. */
  async move(queuedId: number, by: -1 | 1): Promise<void> {
    await this.moveTo(queuedId, this.queueOrder()[this.queueOrder().indexOf(queuedId) + by]);
  }

  /** Move a queued message to the position of another. */
  async moveTo(queuedId: number, other: number | undefined): Promise<void> {
    const moved = moveInOrder(this.queueOrder(), queuedId, other);
    if (moved) await this.moveBefore(queuedId, moved.before, moved.order);
  }

  async moveBefore(queuedId: number, before: number | null, order: number[]): Promise<void> {
    const version = this.nextVersion();
    await this.run(
      { kind: "move", id: newId(), order },
      () => api.moveQueued(this.id, queuedId, before),
      () => version,
    );
  }

  /** Return the version for a change whose response has none: later than all pending operations. */
  private nextVersion(): number {
    const before = this.store.getState().pending.filter((op) => !op.failed);
    return this.held.data.snapshot + before.length + 1;
  }
}

const versionOf = (answer: { snapshot_version: number }) => answer.snapshot_version;
