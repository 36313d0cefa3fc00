import { expect, test } from "vitest";
import { ansiSpans, overwrite } from "@/lib/ansi";

test("colours become spans and other sequences vanish", () => {
  expect(ansiSpans("a\u001b[31mred\u001b[0m\u001b[2K b")).toEqual([
    { text: "a", color: null, bold: false },
    { text: "red", color: 1, bold: false },
    { text: " b", color: null, bold: false },
  ]);
});

test("a line that was written over shows what was written last", () => {
  expect(overwrite("10 %\r100 %\ndone\r\n")).toBe("100 %\ndone\n");
  expect(overwrite("abcdef\rxy")).toBe("xycdef");
});
