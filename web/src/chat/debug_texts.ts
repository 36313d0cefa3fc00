/** Debug records as the panel shows them: labels, figures, timing, and the explanation of cache misses. Pure. */
import type {
  AttemptSummary,
  Cache,
  Place,
  RecordMessage,
  RecordPart,
  RecordStatus,
  Run,
  RunKind,
  StepSummary,
  Usage,
} from "@/api/debug";
import { duration } from "./tool_texts";

export const KIND_NAMES: Record<RunKind, string> = {
  chat_turn: "Turn",
  compaction: "Summary of the chat",
  advisor: "Advisor",
  title_generation: "Title",
  quickgen: "Short text",
};

export const STATUS_NAMES: Record<RecordStatus, string> = {
  in_progress: "Running",
  completed: "Completed",
  interrupted: "Stopped",
  error: "Failed",
};

const LABEL_CHARS = 80;

export function kindName(kind: string): string {
  return Object.hasOwn(KIND_NAMES, kind) ? KIND_NAMES[kind as RunKind] : kind;
}

export function statusName(status: string): string {
  return Object.hasOwn(STATUS_NAMES, status) ? STATUS_NAMES[status as RecordStatus] : status;
}

/** Return the first prompt of a run, shortened; else the name of its kind. */
export function runLabel(run: Run): string {
  const label = (run.summary.first_message ?? "").replace(/\s+/g, " ").trim();
  if (!label) return kindName(run.kind);
  const chars = [...label];
  return chars.length > LABEL_CHARS ? `${chars.slice(0, LABEL_CHARS - 1).join("")}…` : label;
}

export interface NestedRun {
  run: Run;
  depth: 0 | 1;
}

/** Return runs in the given order, with the runs of a turn (its summaries and advisor calls) right after it. */
export function nestedRuns(runs: readonly Run[]): NestedRun[] {
  const known = new Set(runs.map((run) => run.id));
  const children = new Map<string, NestedRun[]>();
  for (const run of runs) {
    if (!isChild(run, known)) continue;
    const parent = run.parent_run_id ?? "";
    children.set(parent, [...(children.get(parent) ?? []), { run, depth: 1 }]);
  }
  return runs
    .filter((run) => !isChild(run, known))
    .flatMap((run): NestedRun[] => [{ run, depth: 0 }, ...(children.get(run.id) ?? [])]);
}

function isChild(run: Run, known: ReadonlySet<string>): boolean {
  return run.parent_run_id !== null && run.parent_run_id !== run.id && known.has(run.parent_run_id);
}

/** Return how long a run or step took, or has taken until `now`; null if a time is unknown. */
export function tookMs(one: { started_at: string; finished_at: string | null }, now: number): number | null {
  const from = Date.parse(one.started_at);
  const until = one.finished_at === null ? now : Date.parse(one.finished_at);
  return Number.isFinite(from) && Number.isFinite(until) ? Math.max(0, until - from) : null;
}

/** Format a duration: `38 ms`, `4.2 s`, `2 min`. */
export function precise(ms: number): string {
  return ms < 1000 ? `${Math.round(ms)} ms` : duration(ms);
}

/** Return the number of retries of a step: its attempts after the first. */
export function retriesOf(step: StepSummary): number {
  return Math.max(0, step.attempts.length - 1);
}

/** Return all input tokens of a call, cached or not. `input_tokens` excludes cached ones. */
export function promptTokens(usage: Usage | null): number {
  if (!usage) return 0;
  return (usage.input_tokens ?? 0) + (usage.cache_read_tokens ?? 0) + (usage.cache_creation_tokens ?? 0);
}

/** Return whether a step has failed and is tried again. The plan of a run that ended meanwhile is void. */
export function waitsToRetry(step: StepSummary, isRunOpen: boolean): boolean {
  return isRunOpen && step.status !== "completed" && Boolean(step.metadata.retrying);
}

/** Return what a step produced, in two words: its tool calls, or its answer. */
export function outcomeOf(step: StepSummary, isRunOpen = false): string {
  if (waitsToRetry(step, isRunOpen)) return "Waits to retry";
  if (step.status === "in_progress") return "Running";
  if (step.status === "error") return "Failed";
  if (step.status === "interrupted") return "Stopped";
  const calls = step.metadata.stream_summary?.tool_call_count;
  if (typeof calls === "number" && calls > 0) return calls === 1 ? "1 tool call" : `${calls} tool calls`;
  return step.finish_reason === "length" ? "Cut off" : "Answer";
}

/** Return the text of a step in a list: its error if it failed for good, else its outcome. */
export function stepText(step: StepSummary, isRunOpen: boolean): string {
  const hasFailed = step.status === "error" && !waitsToRetry(step, isRunOpen);
  return (hasFailed && step.error?.message) || outcomeOf(step, isRunOpen);
}

export type SegmentKind = "preparing" | "waiting" | "answering" | "failed" | "pause";

/** A piece of the time of a step. `attempt` is null between two attempts. */
export interface Segment {
  kind: SegmentKind;
  attempt: number | null;
  fromMs: number;
  ms: number;
}

export interface StepTiming {
  segments: Segment[];
  totalMs: number;
}

/** Return where the time of a step went: preparing, waiting for the first byte, answering, failed attempts, and pauses. */
export function stepTiming(step: StepSummary, now: number): StepTiming {
  const start = Date.parse(step.started_at);
  const segments: Segment[] = [];
  let end = 0;
  for (const attempt of step.attempts) {
    const from = Math.max(end, Date.parse(attempt.started_at) - start || 0);
    if (from > end) {
      const kind = segments.length === 0 ? "preparing" : "pause";
      segments.push({ kind, attempt: null, fromMs: end, ms: from - end });
    }
    segments.push(...attemptSegments(attempt, from));
    end = from + attempt.duration_ms;
  }
  const total = Math.max(end, tookMs(step, now) ?? 0);
  // An open attempt is recorded when it ends.
  const isOpen = step.status === "in_progress" && total > end;
  if (isOpen) segments.push({ kind: "waiting", attempt: null, fromMs: end, ms: total - end });
  else if (step.attempts.length === 0) segments.push(...unobserved(step, total));
  return { segments: segments.filter((one) => one.ms > 0), totalMs: total };
}

/** Return where the time of a step went whose exchanges are not recorded. */
function unobserved(step: StepSummary, total: number): Segment[] {
  if (step.status === "error") return [{ kind: "failed", attempt: null, fromMs: 0, ms: total }];
  const first = Math.min(step.ttft_ms ?? total, total);
  return [
    { kind: "waiting", attempt: null, fromMs: 0, ms: first },
    { kind: "answering", attempt: null, fromMs: first, ms: total - first },
  ];
}

function attemptSegments(attempt: AttemptSummary, from: number): Segment[] {
  const { number, duration_ms: ms } = attempt;
  if (isFailed(attempt)) return [{ kind: "failed", attempt: number, fromMs: from, ms }];
  const first = Math.min(attempt.ttfb_ms ?? ms, ms);
  return [
    { kind: "waiting", attempt: number, fromMs: from, ms: first },
    { kind: "answering", attempt: number, fromMs: from + first, ms: ms - first },
  ];
}

/** Return whether an attempt gave no usable answer: the transport failed, or the provider returned an error. */
export function isFailed(attempt: AttemptSummary): boolean {
  return attempt.status === "failed" || (attempt.response_status ?? 200) >= 400;
}

const REASONS: Record<string, string> = {
  user: "Stopped by the user.",
  silence_timeout: "The provider was silent for too long.",
  shutdown: "The server was shutting down.",
  lease_lost: "Another replica took the chat over.",
  unexpected_eof: "The response ended too early.",
};

/** Return why an attempt ended without a whole answer, as a sentence. */
export function attemptError(attempt: AttemptSummary): string | null {
  const { error } = attempt;
  return error !== null && Object.hasOwn(REASONS, error) ? (REASONS[error] ?? null) : error;
}

const SHOWN_MESSAGES = 10;
const LEAST_MESSAGES = 2;

/** Return the index of the first message of a prompt that is shown at first: the new ones, at least 2, at most 10. */
export function firstShown(count: number, shared: number): number {
  return Math.max(0, Math.min(Math.max(shared, count - SHOWN_MESSAGES), count - LEAST_MESSAGES));
}

/** Return the text of a part for searching and copying. */
export function partText(part: RecordPart): string {
  const head = part.type === "tool-call" || part.type === "tool-result" ? (part.tool_name ?? "") : "";
  return [head, part.text, part.arguments, part.result, part.filename, part.title, part.url].filter(Boolean).join("\n");
}

export function messageText(message: RecordMessage): string {
  return message.parts.map(partText).join("\n\n");
}

/** Return the whole length of a message, also of what the recorder cut. */
export function messageLength(message: RecordMessage): number {
  return message.parts.reduce((sum, part) => sum + (cutLength(part) ?? partText(part).length), 0);
}

/** Return the whole length of a part if the recorder cut it, else null. Lengths alone do not tell: secrets are removed. */
export function cutLength(part: RecordPart): number | null {
  const shown = part.text ?? part.arguments ?? part.result ?? "";
  const whole = part.text_length ?? part.input_length ?? 0;
  return shown.endsWith("…") && whole > shown.length ? whole : null;
}

export interface CacheNote {
  title: string;
  text: string;
}

/** Explain why the provider read a part of the prompt again. Null if nothing is to explain. */
export function cacheNote(cache: Cache | null, step: number): CacheNote | null {
  if (!cache || cache.reason === "none") return null;
  const before = `step ${step - 1}`;
  switch (cache.reason) {
    case "first_step":
      return {
        title: "First step of the run",
        text: "There is no previous step to compare with. Later steps can reuse this prompt.",
      };
    case "messages_changed":
      return {
        title: cache.broke_at == null ? "The messages changed" : `Message ${cache.broke_at + 1} changed`,
        text: `It differs from ${before}, so the provider read the prompt again from there on.`,
      };
    case "tools_changed":
      return {
        title: "The tools changed",
        text: `They differ from ${before}. Tools come before all messages, so nothing could be reused.`,
      };
    case "model_changed":
      return {
        title: "The model changed",
        text: `Each model has its own cache, so nothing of ${before} could be reused.`,
      };
    case "expired":
      return {
        title: "The cache has expired",
        text: `The prompt begins like that of ${before}, but too much time passed between the two.`,
      };
    default:
      return {
        title: "The provider gives no reason",
        text: `The prompt begins like that of ${before}, but the provider did not use its cache.`,
      };
  }
}

/** Return where a search found its words: in a message of the prompt, in the answer, or in an error. */
export function placeName(place: Place): string {
  switch (place.kind) {
    case "message":
      return `Message ${(place.message ?? 0) + 1}, ${place.role ?? ""}`;
    case "output":
      return "Output";
    case "error":
      return "Error";
    default:
      return "Earlier error";
  }
}

export type BodyKind = "json" | "events" | "text" | "binary" | "none";

/** Return how a body is shown. A body that is not what its type says is shown as text. */
export function bodyKind(text: string | null, isBinary: boolean, contentType: string): BodyKind {
  if (isBinary) return "binary";
  if (text === null || text === "") return "none";
  if (/^text\/event-stream/i.test(contentType)) return "events";
  return parsedJson(text) === undefined ? "text" : "json";
}

/** Return the value of a JSON object or array; undefined for other texts. */
export function parsedJson(text: string): unknown {
  if (!/^\s*[[{]/.test(text)) return undefined;
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

/** Return a header's value; the case of its name does not matter. */
export function headerOf(headers: Record<string, string>, name: string): string {
  return Object.entries(headers).find(([key]) => key.toLowerCase() === name)?.[1] ?? "";
}

/** Return whether a text is a mark of the recorder for something that was left out. */
export function isMark(text: string): boolean {
  return /^\[(?:redacted|truncated|base64|binary|media output)\b[^\]]*\]$/i.test(text.trim());
}
