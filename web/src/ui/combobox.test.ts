import { expect, test } from "vitest";
import { matching, type Option, step } from "@/ui/combobox";

const OPTIONS: Option[] = [
  { id: "a", label: "Opus", words: "anthropic" },
  { id: "b", label: "Small opus", disabled: "No key" },
  { id: "c", label: "Sonnet" },
];

test("options that begin with the words come first", () => {
  expect(matching(OPTIONS, "opus").map((one) => one.id)).toEqual(["a", "b"]);
  expect(matching(OPTIONS, "op anth").map((one) => one.id)).toEqual(["a"]);
  expect(matching(OPTIONS, "zzz")).toEqual([]);
});

test("arrows skip what cannot be chosen and go around", () => {
  expect(step(OPTIONS, 0, 1)).toBe(2);
  expect(step(OPTIONS, 2, 1)).toBe(0);
  expect(step(OPTIONS, 0, -1)).toBe(2);
});
