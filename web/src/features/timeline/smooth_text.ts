import { useEffect, useRef, useState } from "react";
import { advance, cut } from "@/chat/smooth";

const COMMIT_MS = 33;

/** Text that follows what was received at an even pace. All at once when the reader asked for less motion. */
export function useSmoothText(received: string): string {
  const [shown, setShown] = useState(received);
  const place = useRef(received.length);
  const target = useRef(received);
  target.current = received;
  useEffect(() => {
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (still || document.hidden) {
      place.current = received.length;
      setShown(received);
      return;
    }
    // A new text in the same place begins anew.
    if (place.current > received.length) place.current = 0;
    if (place.current >= received.length) return;
    let frame = 0;
    let before = performance.now();
    let committed = 0;
    const tick = (now: number) => {
      place.current = advance(place.current, target.current.length, now - before);
      before = now;
      const isDone = place.current >= target.current.length;
      if (isDone || now - committed >= COMMIT_MS) {
        committed = now;
        setShown(cut(target.current, place.current));
      }
      if (!isDone) frame = requestAnimationFrame(tick);
    };
    frame = requestAnimationFrame(tick);
    return () => cancelAnimationFrame(frame);
  }, [received]);
  return received.startsWith(shown) ? shown : received;
}
