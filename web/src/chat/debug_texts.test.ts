import { expect, test } from "vitest";
import type { AttemptSummary, Cache, RecordPart, Run, StepSummary } from "@/api/debug";
import {
  attemptError,
  bodyKind,
  cacheNote,
  cutLength,
  firstShown,
  isMark,
  nestedRuns,
  outcomeOf,
  placeName,
  promptTokens,
  runLabel,
  stepText,
  stepTiming,
  tookMs,
} from "./debug_texts";

const AT = Date.parse("2026-01-05T10:00:00Z");
const time = (ms: number) => new Date(AT + ms).toISOString();

const run = (id: string, more: Partial<Run> = {}): Run => ({
  id,
  chat_id: "c",
  parent_run_id: null,
  root_chat_id: "c",
  parent_chat_id: null,
  kind: "chat_turn",
  status: "completed",
  provider: null,
  model: null,
  model_config_id: null,
  trigger_message_id: null,
  history_tip_message_id: null,
  summary: {},
  started_at: time(0),
  updated_at: time(0),
  finished_at: time(0),
  ...more,
});

const attempt = (number: number, from: number, ms: number, more: Partial<AttemptSummary> = {}): AttemptSummary => ({
  number,
  status: "completed",
  generation_attempt: number,
  method: "POST",
  url: "https://example.org/v1",
  path: "/v1",
  response_status: 200,
  error: null,
  ttfb_ms: 100,
  duration_ms: ms,
  retry_kind: null,
  retry_delay_ms: null,
  started_at: time(from),
  finished_at: time(from + ms),
  request_bytes: null,
  response_bytes: null,
  ...more,
});

const step = (more: Partial<StepSummary> = {}): StepSummary => ({
  id: "s",
  number: 2,
  operation: "stream",
  status: "completed",
  provider: null,
  model: null,
  model_config_id: null,
  history_tip_message_id: null,
  assistant_message_id: null,
  message_count: 0,
  shared_messages: 0,
  tool_count: 0,
  usage: null,
  cost_micros: null,
  finish_reason: "stop",
  error: null,
  metadata: {},
  started_at: time(0),
  finished_at: time(1_000),
  ttft_ms: null,
  cache: null,
  attempts: [],
  ...more,
});

test("a run is named by its first prompt in one line, or by its kind", () => {
  expect(runLabel(run("a", { summary: { first_message: "fix\n  the test " } }))).toBe("fix the test");
  expect(runLabel(run("a", { kind: "title_generation" }))).toBe("Title");
  const long = runLabel(run("a", { summary: { first_message: "🐦".repeat(200) } }));
  expect([...long]).toHaveLength(80);
  expect(long.endsWith("🐦…")).toBe(true);
});

test("runs of a turn follow it, and a run without its parent stands alone", () => {
  const runs = [
    run("late"),
    run("child", { parent_run_id: "turn" }),
    run("orphan", { parent_run_id: "gone" }),
    run("turn"),
    run("own", { parent_run_id: "own" }),
  ];
  expect(nestedRuns(runs).map((one) => `${one.depth} ${one.run.id}`)).toEqual([
    "0 late",
    "0 orphan",
    "0 turn",
    "1 child",
    "0 own",
  ]);
});

test("the time of a step is split into failed attempts, pauses, the first byte and the answer", () => {
  const timing = stepTiming(
    step({
      finished_at: time(3_000),
      attempts: [attempt(1, 0, 400, { response_status: 429 }), attempt(2, 1_400, 1_500)],
    }),
    AT,
  );
  expect(timing).toEqual({
    segments: [
      { kind: "failed", attempt: 1, fromMs: 0, ms: 400 },
      { kind: "pause", attempt: null, fromMs: 400, ms: 1_000 },
      { kind: "waiting", attempt: 2, fromMs: 1_400, ms: 100 },
      { kind: "answering", attempt: 2, fromMs: 1_500, ms: 1_400 },
    ],
    totalMs: 3_000,
  });
});

test("the time before the first request is no pause before a retry", () => {
  const timing = stepTiming(step({ finished_at: time(300), attempts: [attempt(1, 50, 250)] }), AT);
  expect(timing.segments.map((one) => `${one.kind} ${one.ms}`)).toEqual([
    "preparing 50",
    "waiting 100",
    "answering 150",
  ]);
});

test("the time of a step without recorded attempts is split at its first token", () => {
  const timing = stepTiming(step({ finished_at: time(300), ttft_ms: 100, attempts: [] }), AT);
  expect(timing.segments.map((one) => `${one.kind} ${one.ms}`)).toEqual(["waiting 100", "answering 200"]);
  const failed = stepTiming(step({ status: "error", finished_at: time(300), ttft_ms: null, attempts: [] }), AT);
  expect(failed.segments.map((one) => `${one.kind} ${one.ms}`)).toEqual(["failed 300"]);
});

test("the time of a running step goes on, and clocks that jump give no negative time", () => {
  const running = step({ status: "in_progress", finished_at: null });
  expect(stepTiming(running, AT + 500).segments).toEqual([{ kind: "waiting", attempt: null, fromMs: 0, ms: 500 }]);
  expect(tookMs(running, AT - 60_000)).toBe(0);
  const jumped = stepTiming(step({ attempts: [attempt(1, -5_000, 200), attempt(2, -9_000, 300)] }), AT);
  expect(jumped.segments.map((one) => one.fromMs)).toEqual([0, 100, 200, 300]);
});

test("reasons of this server become sentences, and words of a provider stay", () => {
  expect(attemptError(attempt(1, 0, 1, { status: "aborted", error: "user" }))).toBe("Stopped by the user.");
  expect(attemptError(attempt(1, 0, 1, { error: "toString" }))).toBe("toString");
  expect(attemptError(attempt(1, 0, 1))).toBeNull();
});

test("a prompt opens at its new messages, at least two and at most ten", () => {
  expect(firstShown(24, 22)).toBe(22);
  expect(firstShown(24, 24)).toBe(22);
  expect(firstShown(24, 0)).toBe(14);
  expect(firstShown(1, 0)).toBe(0);
  expect(firstShown(0, 0)).toBe(0);
});

test("a text is cut only if it ends with the recorder's mark, since removed secrets shorten it as well", () => {
  const part = (text: string, text_length: number): RecordPart => ({ type: "text", text, text_length });
  expect(cutLength(part("abc…", 900))).toBe(900);
  expect(cutLength(part("[REDACTED]", 40))).toBeNull();
  expect(cutLength(part("and so on…", 10))).toBeNull();
});

test("input tokens include those of the cache", () => {
  expect(promptTokens({ input_tokens: 1, cache_read_tokens: 20, cache_creation_tokens: 300 })).toBe(321);
  expect(promptTokens(null)).toBe(0);
});

test("the outcome of a step is its calls, its answer or how it ended", () => {
  expect(outcomeOf(step({ metadata: { stream_summary: { tool_call_count: 2 } } }))).toBe("2 tool calls");
  expect(outcomeOf(step())).toBe("Answer");
  expect(outcomeOf(step({ finish_reason: "length" }))).toBe("Cut off");
});

test("a failed step waits to retry while its run goes on, and has failed when the run ended", () => {
  const failed = step({
    status: "error",
    error: { type: "ProviderError", message: "Overloaded." },
    metadata: { retrying: { kind: "overloaded", delay_ms: 1 } },
  });
  expect(outcomeOf(failed, true)).toBe("Waits to retry");
  expect(stepText(failed, true)).toBe("Waits to retry");
  expect(outcomeOf(failed, false)).toBe("Failed");
  expect(stepText(failed, false)).toBe("Overloaded.");
  expect(stepText({ ...failed, metadata: {} }, true)).toBe("Overloaded.");
});

test("a cache miss names the first message that changed, and every reason has a sentence", () => {
  const note = (reason: string, broke_at: number | null = null) =>
    cacheNote({ reason: reason as Cache["reason"], broke_at, uncached_tokens: 1, cost_micros: null }, 3);
  expect(note("messages_changed", 4)?.title).toBe("Message 5 changed");
  expect(note("messages_changed", 4)?.text).toContain("step 2");
  expect(note("none")).toBeNull();
  expect(cacheNote(null, 3)).toBeNull();
  const titles = ["first_step", "tools_changed", "model_changed", "expired", "unknown"].map((one) => note(one)?.title);
  expect(new Set(titles).size).toBe(5);
  expect(note("a reason of a newer server")?.title).toBe(note("unknown")?.title);
});

test("a place of a search is named as its messages are numbered", () => {
  const place = { step_id: "s", number: 1, before: "", found: "", after: "", message: null, role: null };
  expect(placeName({ ...place, kind: "message", message: 0, role: "system" })).toBe("Message 1, system");
  expect(placeName({ ...place, kind: "prior_error" })).toBe("Earlier error");
});

test("a body is shown as what it is, not as what it claims to be", () => {
  expect(bodyKind('{"a":1}', false, "text/plain")).toBe("json");
  expect(bodyKind("{oops", false, "application/json")).toBe("text");
  expect(bodyKind("data: 1", false, "text/event-stream; charset=utf-8")).toBe("events");
  expect(bodyKind("", false, "application/json")).toBe("none");
  expect(bodyKind(null, true, "image/png")).toBe("binary");
});

test("marks of the recorder are recognized", () => {
  for (const mark of ["[REDACTED]", "[TRUNCATED 12 bytes sha256:ab]", "[base64 4096 bytes]", "[BINARY 5 bytes]"])
    expect(isMark(mark)).toBe(true);
  expect(isMark("[redactedly] no")).toBe(false);
});
