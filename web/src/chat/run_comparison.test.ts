import { expect, test } from "vitest";
import type { Comparison, Run } from "@/api/debug";
import { comparable, differenceWords, excerpt, firstOther, promptSentence, textDifference } from "./run_comparison";

test.each([
  [1_500, 1_000, "500 more (+50 %)"],
  [1_000, 1_500, "500 less (−33 %)"],
  [1_010, 1_000, "10 more (+1.0 %)"],
  [7, 7, "the same"],
  [7, 0, "7 more"],
  [0, 7, "7 less (−100 %)"],
  [null, 7, null],
  [7, null, null],
])("%s is compared with %s in words", (one, other, words) => {
  expect(differenceWords(one, other, String)).toBe(words);
});

test.each([
  ["It is 9:12 now.", "It is 9:51 now.", { before: "It is 9:", one: "12", other: "51", after: " now." }],
  ["same", "same", { before: "same", one: "", other: "", after: "" }],
  ["aaa", "aa", { before: "aa", one: "a", other: "", after: "" }],
  ["", "new", { before: "", one: "", other: "new", after: "" }],
  ["a 😀 b", "a 😁 b", { before: "a ", one: "😀", other: "😁", after: " b" }],
])("the place where %j and %j differ is found", (one, other, found) => {
  expect(textDifference(one, other)).toEqual(found);
});

test("texts are put together again from their difference", () => {
  const texts = ["", "a", "ab", "aba", "b😀b", "b😁b", "abab", "ba"];
  for (const one of texts) {
    for (const other of texts) {
      const found = textDifference(one, other);
      expect(found.before + found.one + found.after).toBe(one);
      expect(found.before + found.other + found.after).toBe(other);
    }
  }
});

test("a long difference is shortened to what is around its beginning", () => {
  const long = "x".repeat(1_000);
  const found = excerpt(textDifference(`${long}${"1".repeat(900)}${long}`, `${long}2${long}`));
  expect(found.before).toBe(`…${"x".repeat(120)}`);
  expect(found.one).toBe(`${"1".repeat(600)}…`);
  expect(found.other).toBe("2");
  expect(found.after).toBe(`${"x".repeat(120)}…`);
});

const run = (id: string, trigger: number | null, started_at: string, kind = "chat_turn") =>
  ({ id, trigger_message_id: trigger, started_at, kind }) as Run;

test("a run is compared with one of the same message, else with the run before it", () => {
  const newest = run("d", 4, "2026-01-04");
  const runs = [
    newest,
    run("c", 2, "2026-01-03"),
    run("b", 2, "2026-01-02"),
    run("a", 1, "2026-01-01"),
    run("t", 2, "2026-01-01", "quickgen"),
  ];
  const named = (one: Run | undefined) => one?.id;
  const first = (of: Run) => named(firstOther(of, comparable(of, runs)));
  expect(comparable(runs[2] as Run, runs).map(named)).toEqual(["c", "d", "a"]);
  expect(first(runs[2] as Run)).toBe("c");
  expect(first(newest)).toBe("c");
  expect(first(runs[3] as Run)).toBe("d");
  expect(firstOther(newest, [])).toBeUndefined();
});

test("the difference of the prompts is one sentence", () => {
  const found = (same: (number | null)[], message: [number, number] | null) =>
    promptSentence({
      steps: same.map((same_messages) => ({ same_messages })),
      message: message && { number: message[0], index: message[1] },
    } as Comparison);
  expect(found([3, 3], [2, 3])).toBe("The prompts differ from message 4 of step 2 on.");
  expect(found([0], [1, 0])).toBe("The prompts of step 1 differ from the first message on.");
  expect(found([3, 5, null], null)).toBe("The prompts of the 2 steps that both runs have are the same.");
  expect(found([3], null)).toBe("The prompts of the step that both runs have are the same.");
  expect(found([null], null)).toBe("There are no steps whose prompts are recorded in both runs.");
});
