import { expect, test } from "vitest";
import type { Row } from "@/chat/timeline_rows";
import { estimate, firstRow, Heights, NOT_CHOSEN, rangeOf } from "@/features/timeline/row_heights";

const row = (name: string, text = "word"): Row => ({ kind: "prose", key: name, text, refusal: false, messageId: 1 });
const many = (count: number, from = 0) =>
  Array.from({ length: count }, (_, n) => row(`r${from + n}`, "x".repeat(n % 400)));

/** The expected sums, computed directly. */
function slow(rows: readonly Row[], measured: ReadonlyMap<string, number>, from: number, to: number): number {
  return rows.slice(from, to).reduce((sum, one) => sum + (measured.get(one.key) ?? estimate(one)), 0);
}

test("sums follow heights that are measured, rows that are added at both ends, and rows that go", () => {
  const heights = new Heights();
  const measured = new Map<string, number>();
  let rows = many(400, 1000);
  let seed = 7;
  const random = (below: number) => {
    seed = (seed * 1103515245 + 12345) % 2147483648;
    return seed % below;
  };
  for (let step = 0; step < 300; step += 1) {
    heights.use(rows);
    const key = rows[random(rows.length)]?.key ?? "";
    const height = 10 + random(500);
    heights.set(key, height);
    measured.set(key, height);
    const index = random(rows.length + 1);
    expect(heights.top(index)).toBeCloseTo(slow(rows, measured, 0, index));
    expect(heights.after(index)).toBeCloseTo(slow(rows, measured, index, rows.length));
    if (step % 50 === 20) rows = [...many(50, 900 - step), ...rows];
    if (step % 50 === 30) rows = [...rows, ...many(3, 5000 + step * 10)];
    if (step % 50 === 40) rows = rows.slice(0, -20);
  }
});

test("what is in view and a margin around it is mounted, and not much more", () => {
  const heights = new Heights();
  const rows = many(5000);
  heights.use(rows);
  for (const top of [0, 800, 50_000, 200_000, heights.top(5000) - 800]) {
    const { start, end } = heights.rangeFor(top, 800);
    expect(heights.top(start)).toBeLessThanOrEqual(Math.max(0, top - 1200));
    expect(heights.top(end)).toBeGreaterThanOrEqual(Math.min(heights.top(5000), top + 800 + 1200));
    expect(heights.top(end) - heights.top(start)).toBeLessThan(800 + 2 * 1200 + 16 * 200);
  }
  expect(heights.rangeFor(1e9, 800).end).toBe(5000);
});

test("short chats are mounted as a whole", () => {
  const heights = new Heights();
  heights.use(many(150));
  expect(heights.rangeFor(0, 800)).toEqual({ start: 0, end: 150 });
});

test("a height that is measured again as it was changes nothing", () => {
  const heights = new Heights();
  heights.use(many(3));
  expect(heights.set("r1", 100)).toBe(true);
  expect(heights.set("r1", 100)).toBe(false);
  expect(heights.indexOf("r2")).toBe(2);
  expect(heights.indexOf("gone")).toBe(-1);
});

test("a chat that opens begins with as many rows as its view needs, and no more than a few others", () => {
  const rows = many(400);
  const start = firstRow(rows, 800);
  const height = slow(rows, new Map(), start, rows.length);
  expect(height).toBeGreaterThanOrEqual(1200);
  expect(height - estimate(rows[start] as Row)).toBeLessThan(1200);
  expect(firstRow(rows.slice(-2), 800)).toBe(0);
  expect(firstRow([], 800)).toBe(0);
});

test("rows in view are always mounted, and others are chosen only when too few or too many are mounted", () => {
  const heights = new Heights();
  const rows = many(2000);
  heights.use(rows);
  let mounted = heights.rangeFor(0, 800);
  let renders = 0;
  for (let top = 0; top < 20_000; top += 40) {
    const next = heights.rangeInstead(mounted, top, 800);
    // A step of 40 px never leaves the margin.
    expect(next?.isBlank ?? false).toBe(false);
    if (next) renders += 1;
    mounted = next ?? mounted;
    expect(heights.top(mounted.start)).toBeLessThanOrEqual(top);
    expect(heights.top(mounted.end)).toBeGreaterThanOrEqual(top + 800);
  }
  expect(renders).toBeLessThan(60);
  expect(heights.rangeInstead(mounted, 100_000, 800)?.isBlank).toBe(true);
  expect(heights.rangeInstead({ start: 0, end: 2000 }, 100_000, 800)).toMatchObject({ isBlank: false });
});

test("rows in view stay mounted when a chat becomes long and when the first mounted row is gone", () => {
  const heights = new Heights();
  const rows = many(160);
  heights.use(rows);
  const seen = ["gone", "r3", "r4", "r5"];
  for (const keys of [NOT_CHOSEN, { start: "gone", end: "r60" }]) {
    const range = rangeOf(rows, heights, keys, seen, true);
    expect(range.start).toBeLessThanOrEqual(3);
    expect(range.end).toBeGreaterThan(6);
    expect(range.end).toBeLessThan(80);
  }
  expect(rangeOf(rows, heights, NOT_CHOSEN, [], true)).toEqual({ start: 100, end: 160 });
  expect(rangeOf(rows, heights, { start: "r20", end: "r90" }, seen, true)).toEqual({ start: 20, end: 90 });
});
