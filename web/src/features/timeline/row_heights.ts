/** The rows of a long chat that are mounted, computed from measured heights, and estimates for rows never shown. */
import type { Row } from "@/chat/timeline_rows";

/** Up to this number all rows are mounted, so that the browser's search and selection work. */
export const ALL_UP_TO = 150;
const OVERSCAN = 6;
/** Rows within this distance of the view are mounted, so that fast scrolling shows no blank space. */
const MARGIN_PX = 1200;
/** Mounted rows are chosen again if they end within this distance of the view. */
const LEAST_MARGIN_PX = 600;
/** Mounted rows are also chosen again if there are this many more than needed. Fewer are not worth a render. */
const SPARE_ROWS = 20;
/** The margin for a chat that is being opened, because rows may be lower than estimated. */
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
  agent: 120,
  unknown: 30,
  compaction: 40,
  interrupted: 36,
  failed: 24,
  footer: 40,
};

export function estimate(row: Row): number {
  if (row.kind === "prose") return Math.min(2400, 40 + Math.ceil(row.text.length / 80) * 24);
  return ESTIMATES[row.kind];
}

/** Return the first row that is visible at the end of a chat in a view of this height, with a margin. */
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
 * The heights of all rows, and their running sums. After a change, sums are computed again only from the changed row
 * on, so the cost of scrolling does not depend on the number of rows.
 */
export class Heights {
  private readonly known = new Map<string, number>();
  private rows: readonly Row[] = [];
  private readonly places = new Map<string, number>();
  /** `tops[n]` is the offset of row n. Valid for all n up to `valid`. */
  private tops: number[] = [0];
  private valid = 0;
  private sum = 0;

  /** Set the rows. Unchanged rows at the start keep their sums. */
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

  /** Store a measured height. Return whether it changed. */
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

  /** Return the index of a row; -1 if it does not exist. */
  indexOf(key: string | null): number {
    return key === null ? -1 : (this.places.get(key) ?? -1);
  }

  /** Return the offset of a row; for the index after the last row, the total height. */
  top(index: number): number {
    for (; this.valid < index; this.valid += 1) {
      const row = this.rows[this.valid];
      this.tops[this.valid + 1] = (this.tops[this.valid] ?? 0) + (row ? this.of(row) : 0);
    }
    return this.tops[index] ?? 0;
  }

  /** Return the height of the rows from this index to the last. */
  after(index: number): number {
    return Math.max(0, this.sum - this.top(index));
  }

  /** Return the rows to mount for a view at this offset. */
  rangeFor(top: number, height: number): Range {
    const { length } = this.rows;
    if (length <= ALL_UP_TO) return { start: 0, end: length };
    const { start, end } = this.within(top - MARGIN_PX, top + height + MARGIN_PX);
    return { start: Math.max(0, start - OVERSCAN), end: Math.min(length, end + OVERSCAN) };
  }

  /** Return the rows that are at least partly between two offsets. */
  private within(from: number, to: number): Range {
    const start = this.at(from);
    let end = start;
    while (end < this.rows.length && this.top(end) <= to) end += 1;
    return { start, end };
  }

  /**
   * Return which rows to mount instead of `mounted`; null if they are good for a view at this offset. `isBlank` says that
   * a row in view is not mounted.
   */
  rangeInstead(mounted: Range, top: number, height: number): (Range & { isBlank: boolean }) | null {
    const wanted = this.rangeFor(top, height);
    const spare = mounted.end - mounted.start - (wanted.end - wanted.start);
    const isEnough = holds(mounted, this.within(top - LEAST_MARGIN_PX, top + height + LEAST_MARGIN_PX));
    if (isEnough && spare <= SPARE_ROWS) return null;
    return { ...wanted, isBlank: !holds(mounted, this.within(top, top + height)) };
  }

  /** Return the rows to mount around those of `keys` that exist; null if none does. */
  rangeAround(keys: readonly string[]): Range | null {
    const found = keys.map((key) => this.indexOf(key)).filter((index) => index >= 0);
    if (found.length === 0) return null;
    const first = Math.min(...found);
    return this.rangeFor(this.top(first), this.top(Math.max(...found) + 1) - this.top(first));
  }

  /** Return the last row whose offset is at most this. */
  private at(offset: number): number {
    const last = this.rows.length - 1;
    // Extend the sums up to the offset, then search them.
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

  /** Return whether a row has the same height: it is unchanged, or was measured. An estimate depends on the text. */
  private isSame(a: Row | undefined, b: Row | undefined): boolean {
    return a === b || (a !== undefined && a.key === b?.key && this.known.has(a.key));
  }

  private of(row: Row): number {
    return this.known.get(row.key) ?? estimate(row);
  }
}

/** The first mounted row, and the row after the last mounted one; null stands for the start or end of the chat. */
export interface MountedKeys {
  start: string | null;
  end: string | null;
}

/** No rows were chosen: all rows of a short chat are mounted, and those around the view of a long one. */
export const NOT_CHOSEN: MountedKeys = { start: null, end: null };

/** Return whether all rows of `inner` are in `outer`. */
function holds(outer: Range, inner: Range): boolean {
  return outer.start <= inner.start && outer.end >= inner.end;
}

/**
 * Return the range of rows to mount. Until `isWhole`, only the rows that fit on the screen are mounted. The rows `seen`
 * are in view; they stay mounted when a chat becomes long, or when the first mounted row becomes part of another one.
 */
export function rangeOf(
  rows: readonly Row[],
  heights: Heights,
  keys: MountedKeys,
  seen: readonly string[],
  isWhole: boolean,
): Range {
  if (!isWhole) return { start: firstRow(rows, innerHeight), end: rows.length };
  if (rows.length <= ALL_UP_TO) return { start: 0, end: rows.length };
  const end = heights.indexOf(keys.end);
  const start = heights.indexOf(keys.start);
  const last = end < 0 ? rows.length : end;
  if (start < 0) return heights.rangeAround(seen) ?? { start: Math.max(0, last - 60), end: last };
  return { start: Math.min(rows[start - 1]?.kind === "day" ? start - 1 : start, last), end: last };
}

/**
 * Return the keys of a range. The key of a day row changes when older messages are loaded, so the row below it is used
 * instead.
 */
export function keysOf(rows: readonly Row[], start: number, end: number): MountedKeys {
  const first = Math.max(0, start);
  const named = rows[first]?.kind === "day" ? rows[first + 1] : rows[first];
  return { start: named?.key ?? null, end: rows[end]?.key ?? null };
}
