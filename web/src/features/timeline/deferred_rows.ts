import { startTransition, useCallback, useEffect, useState } from "react";

/** The remaining rows are mounted after this time at the latest. */
const IDLE_MS = 300;

/**
 * Return whether all rows should be mounted, and a function that mounts them now. False at first for a chat that opens at
 * its end: the visible rows are mounted first, and the others when the browser is idle.
 */
export function useAllRows(loaded: boolean, atOnce: boolean): [boolean, () => void] {
  const [isWhole, setWhole] = useState(atOnce);
  useEffect(() => {
    if (!loaded || isWhole) return;
    return whenIdle(() => startTransition(() => setWhole(true)));
  }, [loaded, isWhole]);
  const mountAll = useCallback(() => setWhole(true), []);
  return [isWhole || atOnce, mountAll];
}

/** Call `act` after the current frame, when the browser is idle, or after `IDLE_MS`. */
function whenIdle(act: () => void): () => void {
  let idle = 0;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const frame = requestAnimationFrame(() => {
    // Safari has no requestIdleCallback.
    if ("requestIdleCallback" in globalThis) idle = requestIdleCallback(act, { timeout: IDLE_MS });
    else timer = setTimeout(act, 50);
  });
  return () => {
    cancelAnimationFrame(frame);
    clearTimeout(timer);
    if (idle) cancelIdleCallback(idle);
  };
}
