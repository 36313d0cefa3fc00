import { startTransition, useEffect, useState } from "react";

/** The rest of a chat is there after so long at the latest. */
const IDLE_MS = 300;

/**
 * False for the first moment of a chat that opens at its end: the rows in view come first, all others when the browser
 * has nothing better to do.
 */
export function useWhole(loaded: boolean, atOnce: boolean): boolean {
  const [isWhole, setWhole] = useState(atOnce);
  useEffect(() => {
    if (!loaded || isWhole) return;
    return whenIdle(() => startTransition(() => setWhole(true)));
  }, [loaded, isWhole]);
  return isWhole || atOnce;
}

/** Not before the frame that is being made; soon after it also where the browser is never idle. */
function whenIdle(act: () => void): () => void {
  let idle = 0;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const frame = requestAnimationFrame(() => {
    // Safari knows no idle time.
    if ("requestIdleCallback" in globalThis) idle = requestIdleCallback(act, { timeout: IDLE_MS });
    else timer = setTimeout(act, 50);
  });
  return () => {
    cancelAnimationFrame(frame);
    clearTimeout(timer);
    if (idle) cancelIdleCallback(idle);
  };
}
