import { expect, test } from "vitest";
import { nearest } from "@/features/timeline/selection_keeper";

test("the nearest of several equal texts is found", () => {
  const whole = "one two one two one";
  expect(nearest(whole, "one", 0)).toBe(0);
  expect(nearest(whole, "one", 7)).toBe(8);
  expect(nearest(whole, "one", 15)).toBe(16);
  expect(nearest(whole, "one", 99)).toBe(16);
  expect(nearest(whole, "two", 0)).toBe(4);
  expect(nearest(whole, "three", 4)).toBe(-1);
});
