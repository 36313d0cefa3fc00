import { useEffect, useRef, useState } from "react";
import { advance, cut } from "@/chat/smooth";

const COMMIT_MS = 33;
// For so long text may stand still for somebody who types.
const GIVE_WAY_MS = 100;

// The frame that shows a key is the typist's: text that arrives can wait for the next one.
let keyAt = Number.NEGATIVE_INFINITY;
const noteKey = () => {
  keyAt = performance.now();
};
globalThis.addEventListener?.("keydown", noteKey, { capture: true, passive: true });

/** Text that follows what was received at an even pace. All at once when the reader asked for less motion. */
export function useSmoothText(received: string): string {
  const [shown, setShown] = useState(received);
  const target = useRef(received);
  const pace = useRef({ place: received.length, frame: 0, before: 0, committed: 0 });
  target.current = received;
  useEffect(() => {
    const now = pace.current;
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (still || document.hidden) {
      cancelAnimationFrame(now.frame);
      now.frame = 0;
      now.place = received.length;
      setShown(received);
      return;
    }
    // A new text in the same place begins anew.
    if (now.place > received.length) now.place = 0;
    if (now.place >= received.length || now.frame !== 0) return;
    // One loop as long as there is something to catch up with: what arrives meanwhile joins it, and the pace of what
    // is shown stays the same however often something arrives.
    now.before = performance.now();
    const tick = (at: number) => {
      const isTheirs = keyAt > now.before && at - now.committed < GIVE_WAY_MS;
      now.place = advance(now.place, target.current.length, at - now.before);
      now.before = at;
      const isDone = now.place >= target.current.length && !isTheirs;
      if (isDone || (at - now.committed >= COMMIT_MS - 1 && !isTheirs)) {
        now.committed = at;
        setShown(cut(target.current, now.place));
      }
      now.frame = isDone ? 0 : requestAnimationFrame(tick);
    };
    now.frame = requestAnimationFrame(tick);
  }, [received]);
  useEffect(() => {
    const now = pace.current;
    return () => {
      cancelAnimationFrame(now.frame);
      now.frame = 0;
    };
  }, []);
  return received.startsWith(shown) ? shown : received;
}
