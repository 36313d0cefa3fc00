/**
 * Endless animations, such as a spinner. The browser would compute the styles of a CSS animation in every frame. These
 * animations run in steps, and cost nothing between two steps.
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
  // A removed element cancels its animation; the rejection is ignored.
  motion?.finished.catch(() => {});
  return () => motion?.cancel();
};

/** A `ref` that makes an element rotate. */
export const turning = moving(TURN, 1000, 12);

/** A `ref` that makes an element pulse. */
export const pulsing = moving(PULSE, 1600, 16);
