// @vitest-environment happy-dom
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { afterNextKey, showsKey } from "./typing_pauses";

beforeEach(() => {
  vi.useFakeTimers({
    toFake: ["setTimeout", "clearTimeout", "requestAnimationFrame", "cancelAnimationFrame", "performance", "Date"],
  });
  // Long after the key presses of other tests.
  vi.advanceTimersByTime(10_000);
});
afterEach(() => vi.useRealTimers());

const press = () => dispatchEvent(new KeyboardEvent("keydown", { key: "x" }));

test("without typing, the call is made immediately", () => {
  const act = vi.fn();
  afterNextKey(act, 100);
  vi.advanceTimersByTime(1);
  expect(act).toHaveBeenCalledTimes(1);
});

test("while the user types, the call is made once, after the frame of the next key", () => {
  press();
  vi.advanceTimersByTime(50);
  const act = vi.fn();
  afterNextKey(act, 100);
  vi.advanceTimersByTime(30);
  expect(act).not.toHaveBeenCalled();
  press();
  expect(act).not.toHaveBeenCalled();
  vi.advanceTimersByTime(17);
  expect(act).toHaveBeenCalledTimes(1);
  vi.advanceTimersByTime(1_000);
  expect(act).toHaveBeenCalledTimes(1);
});

test("no key comes: it is done when the time is up", () => {
  press();
  vi.advanceTimersByTime(50);
  const act = vi.fn();
  afterNextKey(act, 100);
  vi.advanceTimersByTime(99);
  expect(act).not.toHaveBeenCalled();
  vi.advanceTimersByTime(1);
  expect(act).toHaveBeenCalledTimes(1);
});

test("what was called off is not done, neither by a key nor by time", () => {
  press();
  vi.advanceTimersByTime(50);
  const act = vi.fn();
  const never = afterNextKey(act, 100);
  press();
  // Between the frame of the key press and the scheduled call.
  vi.advanceTimersToNextFrame();
  never();
  vi.advanceTimersByTime(1_000);
  expect(act).not.toHaveBeenCalled();
});

test("a frame belongs to the key that it shows", () => {
  press();
  expect(showsKey(performance.now())).toBe(true);
  vi.advanceTimersToNextFrame();
  expect(showsKey(performance.now())).toBe(true);
  expect(showsKey(performance.now() + 16)).toBe(false);
});
