/**
 * The pace at which received text is shown: at least 60 characters a second, all of it within a quarter of a second,
 * and never more than 400 characters behind.
 */
const LEAST_PER_SECOND = 60;
const CATCH_UP_S = 0.25;
const MOST_BEHIND = 400;
const LONGEST_STEP_MS = 100;

/** Return how many characters are shown after another `ms`. The caller keeps the fraction. */
export function advance(shown: number, received: number, ms: number): number {
  const step = Math.min(Math.max(ms, 0), LONGEST_STEP_MS) / 1000;
  const start = Math.max(shown, received - MOST_BEHIND);
  let at = start;
  // Computed in small steps, so that the pace does not depend on the frame rate.
  for (let left = step; left > 1e-9 && at < received; ) {
    const part = Math.min(left, 0.004);
    at += Math.max(LEAST_PER_SECOND, (received - at) / CATCH_UP_S) * part;
    left -= part;
  }
  return Math.min(at, received);
}

// Long enough for any grapheme (flags, families, letters with marks). Segmenting the whole text would be slow.
const LOOK_BACK = 32;
const segmenter = new Intl.Segmenter(undefined, { granularity: "grapheme" });

/** Return the beginning of a text, at most `length` long, without splitting a grapheme. */
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
