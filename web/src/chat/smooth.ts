/**
 * Shown text follows received text at an even pace: at least 60 characters a second, everything within a quarter of a
 * second, and never more than 400 characters behind.
 */
const LEAST_PER_SECOND = 60;
const CATCH_UP_S = 0.25;
const MOST_BEHIND = 400;
const LONGEST_STEP_MS = 100;

/** How many characters are shown after `ms` more. Fractions are kept by the caller. */
export function advance(shown: number, received: number, ms: number): number {
  const step = Math.min(Math.max(ms, 0), LONGEST_STEP_MS) / 1000;
  const start = Math.max(shown, received - MOST_BEHIND);
  let at = start;
  // In small steps, so that the pace is the same at 30, 60 and 144 frames a second.
  for (let left = step; left > 1e-9 && at < received; ) {
    const part = Math.min(left, 0.004);
    at += Math.max(LEAST_PER_SECOND, (received - at) / CATCH_UP_S) * part;
    left -= part;
  }
  return Math.min(at, received);
}

// Enough for any flag, family or letter with marks; segmenting a long text on every frame would be the slow part.
const LOOK_BACK = 32;
const segmenter = new Intl.Segmenter(undefined, { granularity: "grapheme" });

/** The beginning of a text, at most `length` long, that does not cut a letter in two. */
export function cut(text: string, length: number): string {
  const at = Math.floor(length);
  if (at >= text.length) return text;
  const from = Math.max(0, at - LOOK_BACK);
  const near = text.slice(from, at + LOOK_BACK);
  let end = from;
  for (const { index, segment } of segmenter.segment(near)) {
    if (from + index + segment.length > at) break;
    end = from + index + segment.length;
  }
  return text.slice(0, end);
}
