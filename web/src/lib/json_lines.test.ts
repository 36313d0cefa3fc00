import { expect, test } from "vitest";
import { foldedAtFirst, jsonLines, matchingLines, unfoldedTo, visibleLines } from "@/lib/json_lines";

const VALUE = {
  model: "m",
  list: Array.from({ length: 20 }, (_, index) => ({ index, name: `n${index}` })),
  none: [],
  nil: null,
};
const text = (value: unknown) =>
  jsonLines(value)
    .map(
      (line) =>
        `${"  ".repeat(line.depth)}${line.key === null ? "" : `"${line.key}": `}${line.text}${line.isLast || line.kind === "open" ? "" : ","}`,
    )
    .join("\n");

test("the lines of a value are those of indented JSON", () => {
  for (const value of [VALUE, [], "word", 3, null, [[1], { a: { b: [true] } }]]) {
    expect(text(value)).toBe(JSON.stringify(value, null, 2));
  }
});

test("long members are folded at first, and the outermost never", () => {
  const lines = jsonLines(VALUE);
  const folded = foldedAtFirst(lines);
  const shown = visibleLines(lines, folded, 100).map((index) => lines[index]?.key ?? lines[index]?.text);
  expect(shown).toEqual(["{", "model", "list", "none", "nil", "}"]);
});

test("a match inside folded lines is found and becomes visible", () => {
  const lines = jsonLines(VALUE);
  const folded = foldedAtFirst(lines);
  const [hit = -1] = matchingLines(lines, "N17");
  expect(lines[hit]?.text).toBe('"n17"');
  expect(visibleLines(lines, folded, 1_000)).not.toContain(hit);
  expect(visibleLines(lines, unfoldedTo(lines, folded, hit), 1_000)).toContain(hit);
  expect(matchingLines(lines, "")).toEqual([]);
});

test("no more lines are shown than wanted", () => {
  expect(visibleLines(jsonLines(Array.from({ length: 5_000 }, () => 1)), new Set(), 2_000)).toHaveLength(2_000);
});
