import { expect, test } from "vitest";
import type { Row } from "@/chat/timeline_rows";
import { hitsOf } from "@/features/timeline/find_bar";

const prose = (message: number, index: number, text: string): Row => ({
  kind: "prose",
  key: `m${message}:${index}`,
  text,
  refusal: false,
  messageId: message,
});

const rows = [
  prose(10, 0, "a Heron"),
  prose(10, 1, "nothing"),
  prose(12, 0, "herons"),
  prose(12, 1, "and heron again"),
];

test("rows that are held come first, newest first, and messages that are not by what the server found", () => {
  expect(hitsOf(rows, "heron", [12, 10, 7, 3])).toEqual([
    { message: 12, key: "m12:1" },
    { message: 12, key: "m12:0" },
    { message: 10, key: "m10:0" },
    { message: 7, key: null },
    { message: 3, key: null },
  ]);
});

test("what was loaded meanwhile is counted once", () => {
  const loaded = [prose(7, 0, "the heron"), ...rows];
  expect(hitsOf(loaded, "heron", [12, 10, 7, 3])).toHaveLength(5);
  expect(hitsOf(loaded, "heron", [12, 10, 7, 3])[3]).toEqual({ message: 7, key: "m7:0" });
});

test("a message that reads differently here keeps its place among the others", () => {
  expect(hitsOf(rows, "heron", [12, 11, 10]).map((hit) => hit.message)).toEqual([12, 12, 11, 10]);
});

test("one letter finds nothing yet", () => {
  expect(hitsOf(rows, "h", [])).toEqual([]);
});
