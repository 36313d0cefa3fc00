// @vitest-environment happy-dom
import { expect, test } from "vitest";
import { DEFAULTS, readAppearance } from "@/state/appearance";

test("only what is known and of the right kind is taken over", () => {
  const found = readAppearance({ theme: "dark", code_size: "16", notify_done: false, unknown: 1 });

  expect(found).toEqual({ ...DEFAULTS, theme: "dark", notify_done: false });
  expect(readAppearance(null)).toEqual(DEFAULTS);
});
