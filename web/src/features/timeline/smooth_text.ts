import { useEffect, useRef, useState } from "react";
import { flushSync } from "react-dom";
import { advance, cut } from "@/chat/smooth";
import { wantsLessMotion } from "@/ui/motion";

/** More than a frame and less than two: text moves on with every second frame of most screens. */
const PAUSE_MS = 20;
/** On a slow machine a frame with new text is long. So many times as long nothing of it is rendered: keys go between. */
const REST = 4;
/** Slower than this looks like a stop. */
const SLOWEST_MS = 160;
/** Text that nobody can see is not worth a frame; it is there when they come. */
const UNSEEN_MS = 250;
/** For so long text may stand still for somebody who types. */
const GIVE_WAY_MS = 100;

// The frame that shows a key is the typist's: text that arrives can wait for the next one.
let isKeyWaiting = false;
let keyFrame = Number.NEGATIVE_INFINITY;
const keyShown = (at: number) => {
  isKeyWaiting = false;
  keyFrame = at;
};
const noteKey = () => {
  if (isKeyWaiting) return;
  isKeyWaiting = true;
  requestAnimationFrame(keyShown);
};
globalThis.addEventListener?.("keydown", noteKey, { capture: true, passive: true });

/** A text that grows. */
export interface Arriving {
  /** Null when it is over. */
  read(): string | null;
  /** Called when there may be more. Returns what ends that. */
  subscribe(onMore: () => void): () => void;
  /** Whether its end is on screen. */
  isSeen(): boolean;
}

/**
 * Text that follows what was received at an even pace, and all at once for readers who asked for less motion. It is
 * read and rendered within the frame that shows it: what arrives changes nothing between frames, so no key waits for it.
 */
export function useSmoothText(text: string, arriving: Arriving | null): string {
  const [shown, setShown] = useState(text);
  const first = useRef(text.length);
  useEffect(() => (arriving ? follow(arriving, first.current, setShown) : undefined), [arriving]);
  const received = arriving?.read() ?? text;
  return arriving && received.startsWith(shown) ? shown : received;
}

function follow(arriving: Arriving, first: number, show: (text: string) => void): () => void {
  let place = first;
  let before = performance.now();
  let committed = Number.NEGATIVE_INFINITY;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let frame = 0;
  let pause = PAUSE_MS;
  const painted = new MessageChannel();
  // Behind everything that the frame had to do: styles, layout, paint.
  painted.port1.onmessage = () => {
    pause = Math.min(SLOWEST_MS, Math.max(PAUSE_MS, REST * (performance.now() - committed)));
  };

  const isRunning = () => timer !== undefined || frame !== 0;
  const wait = (ms: number) => {
    timer = setTimeout(() => {
      timer = undefined;
      if (document.hidden) step(performance.now());
      else frame = requestAnimationFrame(step);
    }, ms);
  };
  const step = (at: number) => {
    frame = 0;
    const isTheirs = isKeyWaiting || keyFrame === at;
    if (isTheirs && at - committed < GIVE_WAY_MS) {
      frame = requestAnimationFrame(step);
      return;
    }
    const target = arriving.read();
    if (target === null) return;
    // A new text in the same place begins anew.
    if (place > target.length) place = 0;
    const isStill = document.hidden || !arriving.isSeen() || wantsLessMotion();
    place = isStill ? target.length : advance(place, target.length, at - before);
    before = at;
    committed = at;
    flushSync(() => show(cut(target, place)));
    painted.port2.postMessage(null);
    if (place < target.length) wait(pause);
  };
  const more = () => {
    if (isRunning() || (arriving.read()?.length ?? place) === place) return;
    const now = performance.now();
    const until = document.hidden || !arriving.isSeen() ? UNSEEN_MS : pause;
    before = now;
    wait(Math.max(0, committed + until - now));
  };
  more();
  const forget = arriving.subscribe(more);
  return () => {
    forget();
    painted.port1.close();
    clearTimeout(timer);
    cancelAnimationFrame(frame);
  };
}
