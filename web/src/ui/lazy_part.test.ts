import { afterEach, expect, test, vi } from "vitest";
import { loadPart } from "@/ui/lazy_part";

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

test("a file is loaded again until the server can be reached", async () => {
  vi.useFakeTimers();
  vi.stubGlobal("fetch", () => Promise.reject(new TypeError("offline")));
  const load = vi.fn<() => Promise<string>>();
  load.mockRejectedValueOnce(new TypeError("failed")).mockRejectedValueOnce(new TypeError("failed"));
  load.mockResolvedValueOnce("part");

  const part = loadPart(load);
  await vi.advanceTimersByTimeAsync(999);
  expect(load).toHaveBeenCalledTimes(1);
  await vi.advanceTimersByTimeAsync(2_001);

  expect(await part).toBe("part");
  expect(load).toHaveBeenCalledTimes(3);
});

test("a file that a reachable server does not have is an error", async () => {
  vi.stubGlobal("fetch", () => Promise.resolve(new Response()));
  const load = vi.fn(() => Promise.reject(new TypeError("missing")));

  await expect(loadPart(load)).rejects.toThrow("missing");
  expect(load).toHaveBeenCalledTimes(2);
});
