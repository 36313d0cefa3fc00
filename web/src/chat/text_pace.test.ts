import { expect, test } from "vitest";
import { advance, cut } from "./text_pace";

test("the pace does not depend on the frame rate", () => {
  const after = (fps: number) => {
    let shown = 0;
    for (let n = 0; n < fps / 5; n += 1) shown = advance(shown, 300, 1000 / fps);
    return shown;
  };
  expect(Math.abs(after(30) - after(120))).toBeLessThan(6);
});

test("it is never far behind, catches up, and takes no leap after a pause of the page", () => {
  expect(advance(0, 5000, 16)).toBeGreaterThanOrEqual(4600);
  let shown = 0;
  for (let ms = 0; ms < 1500; ms += 16) shown = advance(shown, 300, 16);
  expect(shown).toBe(300);
  expect(advance(0, 300, 60_000)).toBeLessThan(300);
  expect(advance(10, 10, 16)).toBe(10);
});

test("a letter is never cut in two", () => {
  const text = "a👩‍💻b🇩🇪c é e\u0301f";
  const whole = [...new Intl.Segmenter(undefined, { granularity: "grapheme" }).segment(text)].map((one) => one.index);
  for (let length = 0; length <= text.length; length += 1) {
    const end = cut(text, length).length;
    expect(end <= length && (end === text.length || whole.includes(end)), `at ${length}`).toBe(true);
  }
});
