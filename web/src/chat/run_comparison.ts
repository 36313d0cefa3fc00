/** The comparison of two recorded runs: how far apart their figures are, and where two texts differ. Pure. */
import type { Comparison, Run } from "@/api/debug";

/** Return how much more or less one number is than another: `1.2k more (+39 %)`. Null if one of them is unknown. */
export function differenceWords(
  one: number | null,
  other: number | null,
  shown: (value: number) => string,
): string | null {
  if (one === null || other === null) return null;
  if (one === other) return "the same";
  const share = other === 0 ? "" : ` (${one > other ? "+" : "−"}${percent(Math.abs(one - other) / other)})`;
  return `${shown(Math.abs(one - other))} ${one > other ? "more" : "less"}${share}`;
}

function percent(share: number): string {
  const value = share * 100;
  return `${value < 10 ? value.toFixed(1) : Math.round(value).toLocaleString("en")} %`;
}

/** The place where two texts differ: what is the same before and after it, and what each text has there. */
export interface TextDifference {
  before: string;
  one: string;
  other: string;
  after: string;
}

/** Return the place where two texts differ: everything between their common beginning and their common end. */
export function textDifference(one: string, other: string): TextDifference {
  const shorter = Math.min(one.length, other.length);
  let head = 0;
  while (head < shorter && one[head] === other[head]) head += 1;
  if (isInsidePair(one, head) || isInsidePair(other, head)) head -= 1;
  let tail = 0;
  while (tail < shorter - head && one[one.length - 1 - tail] === other[other.length - 1 - tail]) tail += 1;
  if (isInsidePair(one, one.length - tail) || isInsidePair(other, other.length - tail)) tail -= 1;
  return {
    before: one.slice(0, head),
    one: one.slice(head, one.length - tail),
    other: other.slice(head, other.length - tail),
    after: one.slice(one.length - tail),
  };
}

/** Return whether an index is between the two halves of a character. */
function isInsidePair(text: string, index: number): boolean {
  const code = text.charCodeAt(index);
  return index > 0 && code >= 0xdc00 && code <= 0xdfff;
}

const AROUND_CHARS = 120;
const MOST_CHARS = 600;

/** Shorten the place of a difference to what fits beside another one. */
export function excerpt({ before, one, other, after }: TextDifference): TextDifference {
  const cut = (text: string) => (text.length > MOST_CHARS ? `${text.slice(0, MOST_CHARS)}…` : text);
  return {
    before: before.length > AROUND_CHARS ? `…${before.slice(-AROUND_CHARS)}` : before,
    one: cut(one),
    other: cut(other),
    after: after.length > AROUND_CHARS ? `${after.slice(0, AROUND_CHARS)}…` : after,
  };
}

/** Return whether two runs answer the same message. */
export function isSameTurn(one: Run, other: Run): boolean {
  return one.trigger_message_id !== null && one.trigger_message_id === other.trigger_message_id;
}

/** Return the runs that a run can be compared with, those of the same message first. */
export function comparable(run: Run, runs: readonly Run[]): Run[] {
  const others = runs.filter((one) => one.id !== run.id && one.kind === run.kind);
  return [...others.filter((one) => isSameTurn(one, run)), ...others.filter((one) => !isSameTurn(one, run))];
}

/** Return the run that is compared at first: one of the same message, else the run before, else any. */
export function firstOther(run: Run, others: readonly Run[]): Run | undefined {
  const before = others.find((one) => one.started_at < run.started_at);
  return others[0] && isSameTurn(others[0], run) ? others[0] : (before ?? others[0]);
}

/** Say in one sentence whether the prompts of two runs differ. Messages are counted from 1. */
export function promptSentence({ message, steps }: Comparison): string {
  if (message) {
    return message.index === 0
      ? `The prompts of step ${message.number} differ from the first message on.`
      : `The prompts differ from message ${message.index + 1} of step ${message.number} on.`;
  }
  const compared = steps.filter((pair) => pair.same_messages != null).length;
  if (compared === 0) return "There are no steps whose prompts are recorded in both runs.";
  return compared === 1
    ? "The prompts of the step that both runs have are the same."
    : `The prompts of the ${compared} steps that both runs have are the same.`;
}
