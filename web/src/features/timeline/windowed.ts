/** Which rows of a long chat are mounted, by heights that were measured or, for rows never seen, guessed. */
import type { Row } from "@/chat/rows";

/** Up to here all rows are mounted: the browser's own search and selection work. */
export const ALL_UP_TO = 150;
const OVERSCAN = 6;
/** More than the rows need for a screen, so that quick scrolling meets no blank. */
const MARGIN_PX = 1200;
/** More than the view of a chat that opens, for rows that are lower than guessed. */
const FIRST_MARGIN_PX = 400;

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

/** Where the rows begin that a view of this height shows at the end of a chat, and some more. */
export function firstRow(rows: readonly Row[], height: number): number {
  let start = rows.length;
  for (let room = height + FIRST_MARGIN_PX; room > 0 && start > 0; ) {
    start -= 1;
    const row = rows[start];
    if (row) room -= estimate(row);
  }
  return start;
}

export interface Range {
  start: number;
  end: number;
}

/**
 * The heights of all rows, and sums of them. Sums are kept from the first row on and made again only from where a
 * height changed: scrolling through thousands of rows costs what is near the view.
 */
export class Heights {
  private readonly known = new Map<string, number>();
  private rows: readonly Row[] = [];
  private readonly places = new Map<string, number>();
  /** `tops[n]`: where row n begins. Right for all n up to `valid`. */
  private tops: number[] = [0];
  private valid = 0;
  private sum = 0;

  /** Work with these rows. Those at the beginning that are the same keep their sums. */
  use(rows: readonly Row[]): void {
    if (rows === this.rows) return;
    let same = 0;
    const most = Math.min(rows.length, this.rows.length, this.valid);
    while (same < most && this.isSame(rows[same], this.rows[same])) same += 1;
    this.rows = rows;
    this.valid = same;
    this.places.clear();
    this.sum = 0;
    rows.forEach((row, index) => {
      this.places.set(row.key, index);
      this.sum += this.of(row);
    });
  }

  /** A height as measured. True when it is another than before. */
  set(key: string, height: number): boolean {
    const index = this.places.get(key);
    const row = index === undefined ? undefined : this.rows[index];
    const before = row ? this.of(row) : this.known.get(key);
    this.known.set(key, height);
    if (before === height) return false;
    if (index !== undefined && before !== undefined) {
      this.valid = Math.min(this.valid, index);
      this.sum += height - before;
    }
    return true;
  }

  /** The place of a row; -1 when it is not there. */
  indexOf(key: string | null): number {
    return key === null ? -1 : (this.places.get(key) ?? -1);
  }

  /** Where a row begins; past the last one, where all end. */
  top(index: number): number {
    for (; this.valid < index; this.valid += 1) {
      const row = this.rows[this.valid];
      this.tops[this.valid + 1] = (this.tops[this.valid] ?? 0) + (row ? this.of(row) : 0);
    }
    return this.tops[index] ?? 0;
  }

  /** How high the rows from there to the last are. */
  after(index: number): number {
    return Math.max(0, this.sum - this.top(index));
  }

  /** The rows to mount for a view that begins at `top`. */
  rangeFor(top: number, height: number): Range {
    const { length } = this.rows;
    if (length <= ALL_UP_TO) return { start: 0, end: length };
    const start = this.at(top - MARGIN_PX);
    let end = start;
    while (end < length && this.top(end) <= top + height + MARGIN_PX) end += 1;
    return { start: Math.max(0, start - OVERSCAN), end: Math.min(length, end + OVERSCAN) };
  }

  /** The last row that begins at or before this. */
  private at(offset: number): number {
    const last = this.rows.length - 1;
    // As far as sums go they are searched, then made.
    while (this.valid < last && this.top(this.valid) < offset) this.top(this.valid + 1);
    let low = 0;
    let high = Math.min(this.valid, last);
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if ((this.tops[middle] ?? 0) <= offset) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** A row that was measured keeps its height under its key; the guess for another depends on its text. */
  private isSame(a: Row | undefined, b: Row | undefined): boolean {
    return a === b || (a !== undefined && a.key === b?.key && this.known.has(a.key));
  }

  private of(row: Row): number {
    return this.known.get(row.key) ?? estimate(row);
  }
}
