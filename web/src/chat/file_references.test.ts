import { expect, test } from "vitest";
import type { Part, ReferencePart } from "@/chat/types";
import {
  contentOf,
  mention,
  mentionAt,
  tokenOf,
  usedReferences,
  withoutReference,
  withRemark,
} from "./file_references";
import { plainText } from "./pending_operations";

const lines = (name: string, start: number, end: number): ReferencePart => ({
  type: "file-reference",
  file_name: name,
  start_line: start,
  end_line: end,
  content: "x",
});
const A1 = lines("a.py", 1, 1);
const A12 = lines("a.py", 12, 20);

test("references become parts at their places, and a longer one is not the shorter", () => {
  const parts = contentOf("see @a.py:12-20. And @a.py:1 please\n", [A1, A12]);

  expect(parts).toEqual([
    { type: "text", text: "see" },
    A12,
    { type: "text", text: ". And" },
    A1,
    { type: "text", text: "please" },
  ]);
  expect(contentOf("  ", [A1])).toEqual([]);
  expect(contentOf("@a.py:1", [A1])).toEqual([A1]);
});

test("what was deleted from the text is not referred to any more", () => {
  expect(usedReferences("only @a.py:12-20", [A1, A12])).toEqual([A12]);
  expect(usedReferences("mail@a.pyx", [mention("a.py")])).toEqual([]);
  expect(withoutReference("fix @a.py:1 now", A1)).toBe("fix now");
});

test("remarks stand under what is typed, each on its line", () => {
  const first = withRemark("", A1, "rename this");
  const second = withRemark(first, A12, "why?");

  expect(second).toBe("@a.py:1 rename this\n@a.py:12-20 why?\n");
  expect(contentOf(second, [A1, A12]).map((part) => part.type)).toEqual([
    "file-reference",
    "text",
    "file-reference",
    "text",
  ]);
});

test("a message that was sent reads as it was written, and can be sent again", () => {
  const written = "look\n@a.py:1 rename, also @lib/b.py, please";
  const references = [A1, mention("lib/b.py")];

  const again = plainText(contentOf(written, references) as Part[]);

  expect(again).toBe(written);
  expect(contentOf(again, references)).toEqual(contentOf(written, references));
});

test("a name is asked for behind an @ that begins a word", () => {
  expect(mentionAt("see @src/a", 10)).toEqual({ at: 4, query: "src/a" });
  expect(mentionAt("@", 1)).toEqual({ at: 0, query: "" });
  expect(mentionAt("me@home", 7)).toBeNull();
  expect(mentionAt("see @src and", 12)).toBeNull();
  expect(tokenOf(mention("a b.py"))).toBe("@a b.py");
});
