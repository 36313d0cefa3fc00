/**
 * Which rows are mounted, and where the reader is. Rows stand in the flow of the page between two spacers; the row
 * under the eye keeps its place whatever changes above it.
 */
import type { Row } from "@/chat/rows";

/** Up to here all rows are mounted: the browser's own search and selection work. */
export const ALL_UP_TO = 150;
const OVERSCAN = 6;
/** More than the rows need for a screen, so that quick scrolling meets no blank. */
const MARGIN_PX = 1200;

const ESTIMATES: Record<Row["kind"], number> = {
  day: 30,
  user: 90,
  prose: 160,
  reasoning: 36,
  tool: 52,
  group: 52,
  sources: 36,
  files: 180,
  notice: 48,
  unknown: 30,
  compaction: 40,
  interrupted: 36,
  footer: 40,
};

export function estimate(row: Row): number {
  if (row.kind === "prose") return Math.min(2400, 40 + Math.ceil(row.text.length / 80) * 24);
  return ESTIMATES[row.kind];
}

export interface Range {
  start: number;
  end: number;
}

/** The rows to mount for a place in the list. `heights` are of rows that were mounted before. */
export function rangeFor(
  rows: readonly Row[],
  heights: ReadonlyMap<string, number>,
  top: number,
  height: number,
): Range {
  if (rows.length <= ALL_UP_TO) return { start: 0, end: rows.length };
  let at = 0;
  let start = -1;
  let end = rows.length;
  for (let index = 0; index < rows.length; index += 1) {
    const row = rows[index] as Row;
    const bottom = at + (heights.get(row.key) ?? estimate(row));
    if (start < 0 && bottom > top - MARGIN_PX) start = index;
    if (at > top + height + MARGIN_PX) {
      end = index;
      break;
    }
    at = bottom;
  }
  if (start < 0) start = rows.length - 1;
  return { start: Math.max(0, start - OVERSCAN), end: Math.min(rows.length, end + OVERSCAN) };
}

/** How high the rows are that are not mounted. */
export function spacer(rows: readonly Row[], heights: ReadonlyMap<string, number>, from: number, to: number): number {
  let sum = 0;
  for (let index = from; index < to; index += 1) {
    const row = rows[index] as Row;
    sum += heights.get(row.key) ?? estimate(row);
  }
  return sum;
}
