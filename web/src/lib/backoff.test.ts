import { expect, test } from "vitest";
import { backoff, ending, endingOfStatus } from "@/lib/backoff";

test("waits double from one second to ten, give or take 30 %", () => {
  expect([0, 1, 2, 3, 4, 50].map((n) => backoff(n, 0.5))).toEqual([1000, 2000, 4000, 8000, 10_000, 10_000]);
  expect(backoff(0, 0)).toBeCloseTo(700);
  expect(backoff(0, 0.999)).toBeLessThan(1300);
  expect(backoff(9, 0.999)).toBe(10_000);
});

test("close codes say what to do", () => {
  const codes = [1000, 1006, 1008, 1009, 1011, 1012, 1013, 4401, 4403, 4404, 4408, 4429];
  expect(codes.map(ending)).toEqual([
    "stop",
    "reconnect",
    "refused",
    "refused",
    "reconnect",
    "reconnect",
    "reconnect",
    "signed_out",
    "forbidden",
    "gone",
    "reconnect",
    "refused",
  ]);
  expect([401, 403, 404, 429, 502].map(endingOfStatus)).toEqual([
    "signed_out",
    "forbidden",
    "gone",
    "reconnect",
    "reconnect",
  ]);
});
