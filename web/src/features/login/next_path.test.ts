import { expect, test } from "vitest";
import { nextPath } from "./next_path";

const asked = (next: string) => nextPath(`?next=${encodeURIComponent(next)}`);

test("a path of this application is gone to", () => {
  expect(asked("/c/1?m=2#x")).toBe("/c/1?m=2#x");
  expect(nextPath("")).toBe("/");
});

test("other places are not", () => {
  for (const bad of [
    "https://evil.example/",
    "//evil.example",
    "/\\evil.example",
    "javascript:alert(1)",
    "c/1",
    "/login",
  ]) {
    expect(asked(bad), bad).toBe("/");
  }
});
