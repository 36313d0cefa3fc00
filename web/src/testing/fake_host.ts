/** Replacements for the browser's clock, sockets and fetch in tests. */
import type { Host } from "@/state/stream_connection";

/** A `Host` whose clock, sockets and responses the test controls. */
export class FakeHost implements Host {
  time = 0;
  timers: { at: number; run: () => void }[] = [];
  sockets: FakeSocket[] = [];
  status = 200;
  fetches = 0;
  now = () => this.time;
  random = () => 0.5;
  setTimer = (run: () => void, ms: number) => {
    const timer = { at: this.time + ms, run };
    this.timers.push(timer);
    return timer;
  };
  clearTimer = (timer: unknown) => {
    this.timers = this.timers.filter((one) => one !== timer);
  };
  openSocket = (url: string) => {
    const socket = new FakeSocket(url);
    this.sockets.push(socket);
    return socket as unknown as WebSocket;
  };
  fetch = (async () => {
    this.fetches += 1;
    return new Response(this.status === 200 ? new ReadableStream() : null, { status: this.status });
  }) as typeof fetch;

  /** Advance the time. Due timers run in order. */
  pass(ms: number): void {
    const until = this.time + ms;
    for (;;) {
      const next = this.timers.filter((one) => one.at <= until).sort((a, b) => a.at - b.at)[0];
      if (!next) break;
      this.timers = this.timers.filter((one) => one !== next);
      this.time = next.at;
      next.run();
    }
    this.time = until;
  }

  get socket(): FakeSocket {
    const last = this.sockets.at(-1);
    if (!last) throw new Error("no socket was opened");
    return last;
  }
}

export class FakeSocket {
  readyState = 0;
  readonly url: string;
  sent: string[] = [];
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: string }) => void) | null = null;
  onclose: ((event: { code: number }) => void) | null = null;
  constructor(url: string) {
    this.url = url;
  }
  send = (text: string) => void this.sent.push(text);
  close = () => {
    this.readyState = 3;
  };
  open(): void {
    this.readyState = 1;
    this.onopen?.();
  }
  say(events: unknown): void {
    this.onmessage?.({ data: JSON.stringify(events) });
  }
  end(code: number): void {
    this.readyState = 3;
    this.onclose?.({ code });
  }
}

/** Return a `FakeHost` on the fake timers of the test runner (`vi.useFakeTimers`), for tests that also render. */
export function hostOnFakeTimers(): FakeHost {
  const host = new FakeHost();
  host.now = () => Date.now();
  host.setTimer = ((run: () => void, ms: number) => setTimeout(run, ms)) as unknown as FakeHost["setTimer"];
  host.clearTimer = (timer) => clearTimeout(timer as ReturnType<typeof setTimeout>);
  return host;
}
