/**
 * One stream across reconnects: over WebSocket, or server-sent events if WebSockets do not work. It does not depend on
 * chats: frames go to the owner, which provides the position to continue from.
 */

import { reasonHeaders } from "@/api/access_reasons";
import { address, type Query, takeEarlySocket, tellSignedOut } from "@/api/http";
import { keyHeaders, socketProtocols } from "@/api/session_key";
import type { StreamEvent } from "@/chat/types";
import { backoff, type Ending, ending, endingOfStatus } from "@/lib/backoff";
import { SseReader } from "@/lib/sse";

const SILENCE_MS = 50_000;
const TRY_SOCKETS_AGAIN_MS = 10 * 60_000;

export interface ConnectionState {
  phase: "connecting" | "live" | "backoff" | "stopped";
  attempt: number;
  retryAt: number;
  code: number | null;
  ending: Ending | null;
  /** The error code of a refusal, such as `workspace_not_running`. */
  refusal: string | null;
  transport: "ws" | "sse";
  /** The time at which the connection was lost; 0 while connected. */
  lostAt: number;
}

export interface ConnectionOwner {
  path: string;
  query: () => Query;
  onOpen: () => void;
  onFrame: (events: StreamEvent[]) => void;
  onState: (state: ConnectionState) => void;
}

/** The browser functions that a connection uses; tests replace them. */
export interface Host {
  now: () => number;
  random: () => number;
  setTimer: (run: () => void, ms: number) => unknown;
  clearTimer: (timer: unknown) => void;
  openSocket: (url: string) => WebSocket;
  fetch: typeof fetch;
}

export const browserHost: Host = {
  now: () => Date.now(),
  random: () => Math.random(),
  setTimer: (run, ms) => window.setTimeout(run, ms),
  clearTimer: (timer) => window.clearTimeout(timer as number),
  openSocket: (url) => takeEarlySocket(url) ?? new WebSocket(url, socketProtocols()),
  fetch: (...args) => fetch(...args),
};

// For the whole tab, because the cause is a proxy that all connections share.
let socketsFailed = 0;
let socketsAgainAt = 0;

/** Reset the record of failed WebSockets, for tests. */
export function forgetTransport(): void {
  socketsFailed = 0;
  socketsAgainAt = 0;
}

export const INITIAL_CONNECTION: ConnectionState = {
  phase: "connecting",
  attempt: 0,
  retryAt: 0,
  code: null,
  ending: null,
  refusal: null,
  transport: "ws",
  lostAt: 0,
};

export class Connection {
  private state: ConnectionState = INITIAL_CONNECTION;
  private socket: WebSocket | null = null;
  private abort: AbortController | null = null;
  /** The number of the current connection. Events of earlier connections are ignored. */
  private serial = 0;
  private watchdog: unknown = null;
  private retryTimer: unknown = null;
  private goodbyeMs: number | null = null;
  private readonly owner: ConnectionOwner;
  private readonly host: Host;

  constructor(owner: ConnectionOwner, host: Host = browserHost) {
    this.owner = owner;
    this.host = host;
  }

  get current(): ConnectionState {
    return this.state;
  }

  /** Open the connection, or reconnect immediately if it is waiting. */
  connect(): void {
    if (this.state.phase === "live" || (this.state.phase === "connecting" && (this.socket || this.abort))) return;
    this.drop();
    // A WebSocket cannot send the reason of an administrator in a header.
    const needsHeaders = Object.keys(reasonHeaders(this.owner.path)).length > 0;
    const useSse = needsHeaders || (socketsFailed >= 2 && this.host.now() < socketsAgainAt);
    const lostAt = this.state.lostAt || this.host.now();
    this.set({ phase: "connecting", code: null, ending: null, transport: useSse ? "sse" : "ws", lostAt });
    if (useSse) void this.openEvents();
    else this.openSocket();
  }

  /** Close the connection until `connect` is called. */
  close(): void {
    this.drop();
    // Closed on purpose, so the next connection does not end an interruption.
    this.set({ phase: "stopped", code: 1000, ending: "stop", attempt: 0, lostAt: 0 });
  }

  send(message: unknown): boolean {
    if (this.socket?.readyState !== 1) return false;
    this.socket.send(JSON.stringify(message));
    return true;
  }

  private set(change: Partial<ConnectionState>): void {
    this.state = { ...this.state, ...change };
    this.owner.onState(this.state);
  }

  private drop(): void {
    this.serial += 1;
    this.host.clearTimer(this.watchdog);
    this.host.clearTimer(this.retryTimer);
    const socket = this.socket;
    this.socket = null;
    this.abort?.abort();
    this.abort = null;
    if (socket && socket.readyState < 2) socket.close(1000);
  }

  private openSocket(): void {
    const serial = this.serial;
    const url = new URL(address(this.owner.path, this.owner.query()), location.href);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    let socket: WebSocket;
    try {
      socket = this.host.openSocket(url.href);
    } catch {
      void this.askWhy(serial, 1006);
      return;
    }
    this.socket = socket;
    let opened = false;
    this.watch();
    socket.onopen = () => {
      if (serial !== this.serial) return;
      opened = true;
      socketsFailed = 0;
      this.opened();
    };
    socket.onmessage = (event) => {
      if (serial === this.serial) this.frame(String(event.data));
    };
    // Browsers fire `error` and then `close` for one failure; only `close` is handled.
    socket.onclose = (event) => {
      if (serial !== this.serial) return;
      // The reason of a refused upgrade cannot be read, so the same request is sent without an upgrade.
      if (!opened) void this.askWhy(serial, event.code);
      else this.lost(event.code);
    };
  }

  private async askWhy(serial: number, code: number): Promise<void> {
    let status = 0;
    let refusal: string | null = null;
    try {
      const abort = new AbortController();
      const response = await this.host.fetch(address(this.owner.path, this.owner.query()), {
        credentials: "same-origin",
        headers: { Accept: "text/event-stream", ...keyHeaders(), ...reasonHeaders(this.owner.path) },
        signal: abort.signal,
      });
      status = response.status;
      if (status >= 400) refusal = await codeOf(response);
      abort.abort();
    } catch {
      // The server is unreachable.
    }
    if (serial !== this.serial) return;
    // The plain request works but the upgrade does not: a proxy does not support WebSockets.
    if (status > 0 && status < 400) {
      socketsFailed += 1;
      if (socketsFailed >= 2) socketsAgainAt = this.host.now() + TRY_SOCKETS_AGAIN_MS;
    }
    if (status >= 400) this.lost(code, endingOfStatus(status), refusal);
    else this.lost(code);
  }

  private async openEvents(): Promise<void> {
    const serial = this.serial;
    const abort = new AbortController();
    this.abort = abort;
    this.watch();
    try {
      const response = await this.host.fetch(address(this.owner.path, this.owner.query()), {
        credentials: "same-origin",
        headers: { Accept: "text/event-stream", ...keyHeaders(), ...reasonHeaders(this.owner.path) },
        signal: abort.signal,
      });
      if (serial !== this.serial) return;
      if (!response.ok || !response.body) {
        const refusal = await codeOf(response);
        if (serial === this.serial) this.lost(1006, endingOfStatus(response.status), refusal);
        return;
      }
      this.opened();
      await this.readEvents(serial, response.body);
    } catch {
      // The connection was lost, or aborted by `close`; the serial number distinguishes them.
    }
    if (serial === this.serial) this.lost(1006);
  }

  private async readEvents(serial: number, body: ReadableStream<Uint8Array>): Promise<void> {
    const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
    const events = new SseReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done || serial !== this.serial) return;
      this.watch();
      for (const one of events.push(value)) {
        if (one.event === "batch") this.frame(one.data);
        else if (one.event === "reconnect" || one.event === "close") {
          this.lost((JSON.parse(one.data) as { code?: number }).code ?? 1006);
          return;
        }
      }
    }
  }

  private opened(): void {
    this.goodbyeMs = null;
    this.watch();
    this.owner.onOpen();
    this.set({ phase: "live", attempt: 0, retryAt: 0, code: null, ending: null, refusal: null, lostAt: 0 });
  }

  private frame(text: string): void {
    this.watch();
    let events: StreamEvent[];
    try {
      const read: unknown = JSON.parse(text);
      events = (Array.isArray(read) ? read : [read]) as StreamEvent[];
    } catch {
      this.lost(1006);
      return;
    }
    for (const event of events) if (event.type === "goodbye") this.goodbyeMs = event.retry_after_ms;
    this.owner.onFrame(events);
  }

  private watch(): void {
    this.host.clearTimer(this.watchdog);
    this.watchdog = this.host.setTimer(() => this.lost(1006), SILENCE_MS);
  }

  private lost(code: number, given?: Ending, refusal: string | null = null): void {
    const why = given ?? ending(code);
    this.drop();
    const lostAt = this.state.lostAt || this.host.now();
    if (why !== "reconnect") {
      this.set({ phase: "stopped", code, ending: why, refusal, lostAt });
      if (why === "signed_out") tellSignedOut();
      return;
    }
    const attempt = this.state.attempt;
    const wait = this.goodbyeMs ?? backoff(attempt, this.host.random());
    this.goodbyeMs = null;
    const retryAt = this.host.now() + wait;
    this.set({ phase: "backoff", attempt: attempt + 1, retryAt, code, ending: why, refusal, lostAt });
    this.retryTimer = this.host.setTimer(() => this.connect(), wait);
  }
}

/** Return the error code of a response; null if it is not a response of the server. */
async function codeOf(response: Response): Promise<string | null> {
  try {
    return ((await response.json()) as { code?: string }).code ?? null;
  } catch {
    return null;
  }
}
