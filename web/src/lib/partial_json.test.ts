import { describe, expect, test } from "vitest";
import { PartialJson, readPartial } from "@/lib/partial_json";

const DOCUMENTS = [
  '{"path":"/a/b.py","content":"line 1\\nline \\"two\\" \\u00e9\\ud83d\\ude00 \\\\ end\\/"}',
  '{"files":[{"path":"a","edits":[{"old_text":"x","new_text":"","replace_all":true},{"old_text":"y"}]},{}],"n":-1.5e3}',
  '[1,2,[],{},"",null,false,["a","b"]]',
  '"just a string"',
  '{"a":{"b":{"c":[[["deep"]]]}},"d":0}',
  '{"__proto__":"own","constructor":1}',
  "12",
];

/** Return whether `part` can be a partial value of `whole`: strings are prefixes, members are a subset. */
function isBeginning(part: unknown, whole: unknown): boolean {
  if (typeof part === "string") return typeof whole === "string" && whole.startsWith(part);
  if (Array.isArray(part)) {
    return Array.isArray(whole) && part.length <= whole.length && part.every((one, i) => isBeginning(one, whole[i]));
  }
  if (part && typeof part === "object") {
    return (
      whole !== null &&
      typeof whole === "object" &&
      Object.entries(part).every(([key, value]) => isBeginning(value, (whole as Record<string, unknown>)[key]))
    );
  }
  return part === whole;
}

describe.each(DOCUMENTS)("%s", (text) => {
  const whole = JSON.parse(text) as unknown;

  test("every prefix gives a beginning of the whole", () => {
    for (let end = 0; end <= text.length; end += 1) {
      const value = readPartial(text.slice(0, end));
      expect(value === undefined || isBeginning(value, whole), `after ${end}`).toBe(true);
    }
  });

  test("the whole is what JSON.parse reads, however it is cut", () => {
    for (let size = 1; size <= 7; size += 1) {
      const parser = new PartialJson();
      for (let at = 0; at < text.length; at += size) parser.push(text.slice(at, at + size));
      parser.end();
      expect(parser.value).toEqual(whole);
      expect(parser.isComplete).toBe(true);
    }
  });
});

test("the last string grows letter by letter", () => {
  const parser = new PartialJson();
  const seen: unknown[] = [];
  for (const char of '{"c":"abc"') {
    parser.push(char);
    seen.push((parser.value as { c?: string }).c);
  }
  expect(seen.filter(Boolean)).toEqual(["a", "ab", "abc", "abc"]);
});

test("what is no JSON is said to be broken and keeps what was read", () => {
  const parser = new PartialJson();
  parser.push('{"a":"b"} tail');
  expect(parser.isBroken).toBe(true);
  expect(parser.value).toEqual({ a: "b" });
});
