/** Scheduling of slow work between key presses. */

/** After a pause of this length the user is not typing. */
const TYPING_MS = 400;

let isWaiting = false;
let keyFrame = Number.NEGATIVE_INFINITY;
let typedAt = Number.NEGATIVE_INFINITY;
const behind = new Set<() => void>();

const shown = (at: number) => {
  isWaiting = false;
  keyFrame = at;
  // A timer runs after the frame is painted.
  for (const act of [...behind]) setTimeout(act, 0);
  behind.clear();
};
const noteKey = () => {
  typedAt = performance.now();
  if (isWaiting) return;
  isWaiting = true;
  requestAnimationFrame(shown);
};
globalThis.addEventListener?.("keydown", noteKey, { capture: true, passive: true });

/** Return whether the frame that begins at this time shows a key press. */
export const showsKey = (at: number) => isWaiting || keyFrame === at;

/**
 * Call `act` right after the frame of the next key press, when another key press is least likely. If the user is not
 * typing, call it immediately; otherwise after `ms` at the latest. Returns a function that cancels it.
 */
export function afterNextKey(act: () => void, ms: number): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const cancel = () => {
    clearTimeout(timer);
    behind.delete(run);
  };
  let isOver = false;
  const run = () => {
    cancel();
    if (!isOver) act();
    isOver = true;
  };
  const isTyping = performance.now() - typedAt < TYPING_MS;
  if (isTyping) behind.add(run);
  timer = setTimeout(run, isTyping ? ms : 0);
  return () => {
    isOver = true;
    cancel();
  };
}
