import { expect, test } from "vitest";
import { type Block, emptyPreview, isOnlyLonger, lastWords, newTool, type Preview } from "@/chat/preview";

const words = (text: string): Block => ({ kind: "text", text, refusal: false });
const thought = (text: string, endedAt: string | null = null): Block => ({
  kind: "reasoning",
  text,
  startedAt: null,
  endedAt,
});
const tool: Block = { kind: "tool", call: newTool("t1", "execute") };
const of = (...blocks: Block[]): Preview => ({ ...emptyPreview([1, 1]), blocks });

test("more words of the last block change nothing else, and whatever else changes does", () => {
  const first = words("All");
  const before = of(first, tool, words("So"));
  expect(isOnlyLonger(before, { ...before, blocks: [first, tool, words("So far")] })).toBe(true);
  expect(isOnlyLonger(before, { ...before, blocks: [first, tool, words("No")] })).toBe(false);
  expect(isOnlyLonger(before, { ...before, blocks: [words("All"), tool, words("So far")] })).toBe(false);
  expect(isOnlyLonger(before, { ...before, blocks: [...before.blocks, tool] })).toBe(false);
  expect(isOnlyLonger(before, { ...before, stale: true })).toBe(false);
  expect(isOnlyLonger(before, null)).toBe(false);
  expect(isOnlyLonger(null, before)).toBe(false);
});

test("a thought that is over, or is shown with the call before it, is more than longer", () => {
  expect(isOnlyLonger(of(thought("Hm")), of(thought("Hm, yes")))).toBe(true);
  expect(isOnlyLonger(of(thought("Hm")), of(thought("Hm", "2026-01-01T00:00:00Z")))).toBe(false);
  const behind = of(tool, thought("Hm"));
  expect(isOnlyLonger(behind, { ...behind, blocks: [tool, thought("Hm, yes")] })).toBe(false);
});

test("the words that arrive are those of the last block, of a beginning that is shown again too", () => {
  expect(lastWords(of(words("a"), words("b")))).toBe("b");
  expect(lastWords(of(words("a"), tool))).toBeNull();
  expect(lastWords({ ...emptyPreview([1, 2], [words("before")]) })).toBe("before");
  expect(lastWords(null)).toBeNull();
});
