import { expect, test } from "vitest";
import { dollars, dollarsIn } from "@/ui/money";

test("amounts of one list have the same number of digits", () => {
  const parts = [9_300, 1_900];
  const format = dollarsIn(parts);
  expect([11_200, ...parts].map(format)).toEqual(["$0.0112", "$0.0093", "$0.0019"]);
  expect([420_000, 30_000].map(dollarsIn([420_000, 30_000]))).toEqual(["$0.42", "$0.03"]);
  expect(dollarsIn([0])(0)).toBe(dollars(0));
});
