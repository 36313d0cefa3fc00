/** When somebody types: what is slow and can wait goes between the keys. */

/** A pause this long, and nobody is typing any more. */
const TYPING_MS = 400;

let isWaiting = false;
let keyFrame = Number.NEGATIVE_INFINITY;
let typedAt = Number.NEGATIVE_INFINITY;
const behind = new Set<() => void>();

const shown = (at: number) => {
  isWaiting = false;
  keyFrame = at;
  // A timer has its turn when the frame is painted.
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

/** Whether the frame that begins at this time shows a key. */
export const showsKey = (at: number) => isWaiting || keyFrame === at;

/**
 * Call `act` right behind the frame of the next key, when another is least likely; at once when nobody types, and after
 * `ms` at the latest. Returns what prevents it.
 */
export function behindNextKey(act: () => void, ms: number): () => void {
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
