import { expect, test } from "vitest";
import {
  completions,
  everywhere,
  queryOf,
  refusedPill,
  splitAtWords,
  takePills,
  withPills,
  wordsOf,
} from "@/chat/search_pills";

test("a filter becomes a pill once it is finished, and words stay", () => {
  expect(takePills("fix status:error")).toEqual({ pills: [], rest: "fix status:error" });
  expect(takePills("fix status:error now")).toEqual({ pills: [{ name: "status", value: "error" }], rest: "fix now" });
  expect(takePills("status:error", true)).toEqual({ pills: [{ name: "status", value: "error" }], rest: "" });
  expect(takePills("status:error ")).toEqual({ pills: [{ name: "status", value: "error" }], rest: "" });
});

test("values may stand in quotes, and what is no filter is text", () => {
  expect(takePills('label:"team=my docs" x', true)).toEqual({
    pills: [{ name: "label", value: '"team=my docs"' }],
    rest: "x",
  });
  expect(takePills("http://x.org: foo:bar ", true)).toEqual({ pills: [], rest: "http://x.org: foo:bar " });
  expect(takePills('label:"not closed ')).toEqual({ pills: [], rest: 'label:"not closed ' });
});

test("pills and words are one query, which finds archived chats too unless it says otherwise", () => {
  const query = queryOf([{ name: "status", value: "error" }], " fix it ");

  expect(query).toBe("status:error fix it");
  expect(everywhere(query)).toBe("status:error fix it archived:any");
  expect(everywhere("archived:true x")).toBe("archived:true x");
});

test("the newer filter of a name counts, and labels come together", () => {
  const old = [
    { name: "status", value: "error" },
    { name: "label", value: "a=1" },
  ];
  const more = [
    { name: "status", value: "running" },
    { name: "label", value: "b=2" },
    { name: "label", value: "a=1" },
  ];

  expect(withPills(old, more).map((one) => `${one.name}:${one.value}`)).toEqual([
    "label:a=1",
    "status:running",
    "label:b=2",
  ]);
});

test("names of filters are offered, and then their values", () => {
  expect(completions("fix st").map((one) => one.text)).toEqual(["fix status:"]);
  expect(completions("fix status:").map((one) => one.text)).toEqual([
    "fix status:needs_you ",
    "fix status:working ",
    "fix status:failed ",
    "fix status:idle ",
  ]);
  expect(completions("fix status:n").map((one) => one.text)).toEqual(["fix status:needs_you "]);
  expect(completions("label:")).toEqual([]);
  expect(completions("f")).toEqual([]);
});

test("the refused filter is the one that the message quotes", () => {
  const pills = [
    { name: "status", value: "foo" },
    { name: "pinned", value: "true" },
  ];

  expect(refusedPill(pills, "The search term 'status:foo' is not valid: status knows idle.")).toBe(pills[0]);
  expect(refusedPill(pills, "The server did not answer.")).toBeUndefined();
});

test("the words of a search are marked in a text, and excluded words are not", () => {
  expect(wordsOf('Fix OR "the Größe" -not -"this one"')).toEqual(["fix", "the", "größe"]);
  expect(splitAtWords("Fixed: fix the größe!", ["fix", "größe"])).toEqual(["Fixed: ", "fix", " the ", "größe", "!"]);
  expect(splitAtWords("a b", [])).toEqual(["a b"]);
});
