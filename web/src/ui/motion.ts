/**
 * Motion without end, such as that of a ring that turns. A CSS animation would have its styles computed anew with every
 * frame that the page makes for anything else; these are in steps, and between two steps there is nothing to do.
 */
export function wantsLessMotion(): boolean {
  return (
    document.documentElement.dataset.motion === "reduced" || matchMedia("(prefers-reduced-motion: reduce)").matches
  );
}

const TURN = [{ transform: "none" }, { transform: "rotate(360deg)" }];
const PULSE = [{ opacity: 1 }, { opacity: 0.45 }, { opacity: 1 }];

const moving = (keyframes: Keyframe[], duration: number, steps: number) => (element: Element | null) => {
  if (!element || wantsLessMotion()) return;
  const easing = `steps(${steps})`;
  const motion = element.animate?.(keyframes, { duration, easing, iterations: Number.POSITIVE_INFINITY });
  // What goes away ends by being cancelled, and nobody waits for it.
  motion?.finished.catch(() => {});
  return () => motion?.cancel();
};

/** As the `ref` of an element: it turns while it is there. */
export const turning = moving(TURN, 1000, 12);

/** As the `ref` of an element: it fades and comes back while it is there. */
export const pulsing = moving(PULSE, 1600, 16);
