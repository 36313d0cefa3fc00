import { expect, test } from "vitest";
import { limitFor, sizes } from "./image_scaling";

test("each provider has its limit, less room for what wraps the picture", () => {
  expect(limitFor("anthropic")).toBe(5 * 1024 * 1024 - 16 * 1024);
  expect(limitFor("bedrock")).toBe(limitFor("anthropic"));
  expect(limitFor("openai")).toBe(10 * 1024 * 1024 - 16 * 1024);
  expect(limitFor(null)).toBe(limitFor("openai"));
});

test("sizes go down in eight steps from what any provider takes", () => {
  const small = sizes(1000, 500);
  expect(small).toHaveLength(8);
  expect(small[0]).toEqual({ width: 1000, height: 500 });
  expect(small[1]).toEqual({ width: 800, height: 400 });
  expect(sizes(16_384, 100)[0]?.width).toBe(8192);
  const large = sizes(10_000, 10_000)[0];
  expect((large?.width ?? 0) * (large?.height ?? 0)).toBeLessThanOrEqual(40_010_000);
  expect(sizes(1, 1).every(({ width, height }) => width === 1 && height === 1)).toBe(true);
});
