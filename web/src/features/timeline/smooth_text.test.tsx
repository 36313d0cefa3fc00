// @vitest-environment happy-dom
import { act } from "react";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { type Arriving, useSmoothText } from "@/features/timeline/smooth_text";
import { type Mounted, mount } from "@/testing/mount";

const LONG = "words and more words, ".repeat(12);

let received: string;
let told: Set<() => void>;
let isSeen: boolean;
let renders: number;
let page: Mounted;

const arriving: Arriving = {
  read: () => received,
  subscribe: (onMore) => {
    told.add(onMore);
    return () => told.delete(onMore);
  },
  isSeen: () => isSeen,
};

function Shown() {
  const text = useSmoothText("", arriving);
  renders += 1;
  return <p>{text}</p>;
}

beforeEach(() => {
  vi.useFakeTimers({
    toFake: ["setTimeout", "clearTimeout", "requestAnimationFrame", "cancelAnimationFrame", "performance", "Date"],
  });
  received = "";
  told = new Set();
  isSeen = true;
  renders = 0;
  page = mount(<Shown />);
});
afterEach(() => {
  page.unmount();
  vi.useRealTimers();
});

const shown = () => page.element.textContent ?? "";
const pass = (ms: number) => act(() => vi.advanceTimersByTime(ms));
const hear = (text: string) => {
  received += text;
  for (const each of told) each();
};

test("text follows what was received, step by step, until all of it is there", () => {
  hear(LONG);
  pass(100);
  expect(shown().length).toBeGreaterThan(10);
  expect(shown().length).toBeLessThan(LONG.length);
  expect(LONG.startsWith(shown())).toBe(true);
  pass(2_000);
  expect(shown()).toBe(LONG);
});

test("what comes changes the page 30 times a second however often it comes", () => {
  const before = renders;
  for (let n = 0; n < 200; n += 1) {
    hear("word ");
    pass(5);
  }
  expect(renders - before).toBeGreaterThan(15);
  expect(renders - before).toBeLessThanOrEqual(32);
});

test("text out of sight is shown four times a second, and as far as it came", () => {
  isSeen = false;
  hear("first ");
  pass(300);
  const before = renders;
  for (let n = 0; n < 100; n += 1) {
    hear("word ");
    pass(10);
  }
  expect(renders - before).toBeLessThanOrEqual(5);
  pass(300);
  expect(shown()).toBe(received);
});

test("the frame that shows a key shows no new text", () => {
  hear(LONG);
  pass(100);
  const before = shown();
  dispatchEvent(new KeyboardEvent("keydown", { key: "x" }));
  // The frame of the key press, independent of the text's own schedule.
  pass(16);
  expect(shown()).toBe(before);
  for (let n = 0; n < 3; n += 1) {
    dispatchEvent(new KeyboardEvent("keydown", { key: "x" }));
    pass(16);
  }
  expect(shown()).toBe(before);
  // Continuous typing does not stop the text.
  for (let n = 0; n < 6; n += 1) {
    dispatchEvent(new KeyboardEvent("keydown", { key: "x" }));
    pass(16);
  }
  expect(shown().length).toBeGreaterThan(before.length);
});

test("where a frame takes long there are fewer of them, and the text comes all the same", () => {
  page.unmount();
  // A message to itself is delivered after the frame, which takes 40 ms here.
  vi.stubGlobal(
    "MessageChannel",
    class {
      port1: { onmessage?: () => void; close(): void } = { close: () => undefined };
      port2 = { postMessage: () => void setTimeout(() => this.port1.onmessage?.(), 40) };
    },
  );
  page = mount(<Shown />);
  const before = renders;
  for (let n = 0; n < 200; n += 1) {
    hear("word ");
    pass(5);
  }
  vi.unstubAllGlobals();
  expect(renders - before).toBeGreaterThan(4);
  expect(renders - before).toBeLessThanOrEqual(9);
  pass(2_000);
  expect(shown()).toBe("word ".repeat(200));
});
