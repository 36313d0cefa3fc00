import { useEffect, useRef, useState } from "react";
import { flushSync } from "react-dom";
import { advance, cut } from "@/chat/smooth";
import { behindNextKey, showsKey } from "@/features/timeline/typist";
import { wantsLessMotion } from "@/ui/motion";

/** More than a frame and less than two: text moves on with every second frame of most screens. */
const PAUSE_MS = 20;
/** On a slow machine a frame with new text is long. So many times as long nothing of it is rendered: keys go between. */
const REST = 4;
/** Where text rests this long its frames are long: then it is rendered before its frame, and right behind a key. */
const LONG_MS = 60;
/** Slower than this looks like a stop. */
const SLOWEST_MS = 160;
/** Text that nobody can see is not worth a frame; it is there when they come. */
const UNSEEN_MS = 250;
/** For so long text may stand still for somebody who types. */
const GIVE_WAY_MS = 100;

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
 * Where that takes long it is rendered in a task before the frame, so that neither of them holds a key for all of it.
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
  // Behind everything that the frame had to do: styles, layout, paint.
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
      else stopWaiting = behindNextKey(stepBefore, GIVE_WAY_MS);
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
    // A new text in the same place begins anew.
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
