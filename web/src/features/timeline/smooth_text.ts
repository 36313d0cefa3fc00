import { useEffect, useRef, useState } from "react";
import { flushSync } from "react-dom";
import { advance, cut } from "@/chat/text_pace";
import { wantsLessMotion } from "@/ui/endless_animations";
import { afterNextKey, showsKey } from "./typing_pauses";

/** The minimum time between two updates: more than one frame and less than two at 60 Hz. */
const PAUSE_MS = 20;
/** The pause after an update is this many times the time of the update, so that key presses are handled between. */
const REST = 4;
/** With pauses this long, updates are slow: they are rendered in a task before the frame, after a key press. */
const LONG_MS = 60;
/** The longest pause; a longer one would look like a stop. */
const SLOWEST_MS = 160;
/** The pause while the end of the text is not visible. */
const UNSEEN_MS = 250;
/** The longest time that an update waits for typing. */
const GIVE_WAY_MS = 100;

/** A growing text. */
export interface Arriving {
  /** Returns the text so far; null when it has ended. */
  read(): string | null;
  /** Calls `onMore` when there may be more text. Returns a function that unsubscribes. */
  subscribe(onMore: () => void): () => void;
  /** Returns whether the end of the text is visible. */
  isSeen(): boolean;
}

/**
 * Return the part of a growing text to show now. It grows at an even pace, or at once for users who prefer reduced
 * motion. The text is read and rendered in the frame that shows it, so that arriving text does not delay key presses.
 * If rendering is slow, it is done in a task before the frame, so that a key press waits for only one of the two.
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
  let stopWaiting: (() => void) | undefined;
  let frame = 0;
  let pause = PAUSE_MS;
  let spent = 0;
  let framed = 0;
  const painted = new MessageChannel();
  // Delivered after the frame's styles, layout and paint.
  painted.port1.onmessage = () => {
    pause = Math.min(SLOWEST_MS, Math.max(PAUSE_MS, REST * (spent + performance.now() - framed)));
  };
  const measure = (at: number) => {
    framed = at;
    painted.port2.postMessage(null);
  };

  const isRunning = () => timer !== undefined || stopWaiting !== undefined || frame !== 0;
  const wait = (ms: number) => {
    timer = setTimeout(() => {
      timer = undefined;
      if (document.hidden) step(performance.now());
      else if (pause < LONG_MS) frame = requestAnimationFrame(step);
      else stopWaiting = afterNextKey(stepBefore, GIVE_WAY_MS);
    }, ms);
  };
  const step = (at: number) => {
    frame = 0;
    if (showsKey(at) && at - committed < GIVE_WAY_MS) {
      frame = requestAnimationFrame(step);
      return;
    }
    spent = 0;
    if (render(at)) measure(at);
  };
  const stepBefore = () => {
    stopWaiting = undefined;
    const at = performance.now();
    if (!render(at)) return;
    spent = performance.now() - at;
    requestAnimationFrame(measure);
  };
  const render = (at: number) => {
    const target = arriving.read();
    if (target === null) return false;
    // A shorter text is a new one and starts from its beginning.
    if (place > target.length) place = 0;
    const isStill = document.hidden || !arriving.isSeen() || wantsLessMotion();
    place = isStill ? target.length : advance(place, target.length, at - before);
    before = at;
    committed = at;
    flushSync(() => show(cut(target, place)));
    if (place < target.length) wait(pause);
    return true;
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
    stopWaiting?.();
    cancelAnimationFrame(frame);
  };
}
