/** The debug records of a chat: runs, their steps (model calls), and the attempts (HTTP exchanges) of a step. */
import { fetchBytes } from "@/api/files";
import { address, del, get, patch, post } from "@/api/http";
import type { ChatView, Effort } from "@/api/types.gen";

export type RunKind = "chat_turn" | "compaction" | "advisor" | "title_generation" | "quickgen";
export type RecordStatus = "in_progress" | "completed" | "interrupted" | "error";
export type DebugMode = "inherit" | "on" | "off";

export interface RunSummary {
  first_message?: string;
  endpoint_label?: string;
  ttft_ms?: number;
  step_count?: number;
  attempt_count?: number;
  retry_count?: number;
  total_input_tokens?: number;
  total_output_tokens?: number;
  total_reasoning_tokens?: number;
  total_cache_read_tokens?: number;
  total_cache_creation_tokens?: number;
  cost_micros?: number;
  has_error?: boolean;
  truncated?: boolean;
  continues?: string;
}

export interface Run {
  id: string;
  chat_id: string;
  parent_run_id: string | null;
  root_chat_id: string | null;
  parent_chat_id: string | null;
  kind: RunKind;
  status: RecordStatus;
  provider: string | null;
  model: string | null;
  model_config_id: string | null;
  trigger_message_id: number | null;
  history_tip_message_id: number | null;
  summary: RunSummary;
  started_at: string;
  updated_at: string;
  finished_at: string | null;
}

/** Whether calls of this chat are recorded. `is_forced`: by the operator; `is_allowed`: users may choose. */
export interface Recording {
  mode: DebugMode;
  is_on: boolean;
  is_forced: boolean;
  is_allowed: boolean;
}

export interface RunPage {
  runs: Run[];
  next_cursor: string | null;
  recording: Recording;
}

export interface Usage {
  input_tokens?: number;
  output_tokens?: number;
  total_tokens?: number;
  reasoning_tokens?: number;
  cache_creation_tokens?: number;
  cache_read_tokens?: number;
}

export interface RecordError {
  message: string;
  type?: string;
  kind?: string;
  cancelled?: boolean;
  provider_title?: string;
  provider_status?: number;
  request_id?: string;
  retryable?: boolean;
}

export interface PriorError {
  kind: string;
  message: string;
  generation_attempt: number;
}

export interface StepMetadata {
  stream_summary?: Record<string, unknown>;
  prior_errors?: PriorError[];
  retrying?: unknown;
  transport?: string;
  structured_output?: boolean;
}

export interface Cache {
  broke_at: number | null;
  reason: string;
  uncached_tokens: number;
  cost_micros: number | null;
}

export interface AttemptSummary {
  number: number;
  status: "completed" | "failed" | "aborted";
  generation_attempt: number;
  method: string;
  url: string;
  path: string;
  response_status: number | null;
  error: string | null;
  ttfb_ms: number | null;
  duration_ms: number;
  retry_kind: string | null;
  retry_delay_ms: number | null;
  started_at: string;
  request_bytes: number | null;
  response_bytes: number | null;
}

export interface StepSummary {
  id: string;
  number: number;
  operation: "stream" | "generate";
  status: RecordStatus;
  history_tip_message_id: number | null;
  assistant_message_id: number | null;
  message_count: number;
  /** The number of messages at the beginning that are the same as in the previous step. */
  shared_messages: number;
  tool_count: number;
  usage: Usage | null;
  cost_micros: number | null;
  finish_reason: string | null;
  error: RecordError | null;
  metadata: StepMetadata;
  started_at: string;
  finished_at: string | null;
  ttft_ms: number | null;
  cache: Cache | null;
  attempts: AttemptSummary[];
}

export interface RunDetail extends Run {
  steps: StepSummary[];
}

export interface RecordPart {
  type: string;
  text?: string | null;
  /** The length before the recorder cut the text. */
  text_length?: number | null;
  filename?: string | null;
  media_type?: string | null;
  tool_call_id?: string | null;
  tool_name?: string | null;
  arguments?: string | null;
  result?: string | null;
  is_error?: boolean;
  size?: number | null;
  input_length?: number | null;
  source_type?: string | null;
  title?: string | null;
  url?: string | null;
}

export interface RecordMessage {
  role: string;
  parts: RecordPart[];
}

export interface RecordTool {
  type: string;
  name: string;
  description?: string | null;
  id?: string | null;
  input_schema?: unknown;
}

export interface RecordRequest {
  messages: RecordMessage[];
  tools: RecordTool[];
  options: Record<string, unknown>;
  tool_choice?: unknown;
  effort?: string | null;
  schema_name?: string | null;
  schema_description?: string | null;
  structured_output?: boolean;
  provider_option_names?: string[];
}

export interface RecordResponse {
  content: RecordPart[];
  finish_reason?: string | null;
  usage?: Usage | null;
  warnings?: Record<string, unknown>[];
  finish_detail?: string | null;
  /** The length of a structured answer, whose text is not recorded. */
  raw_text_length?: number | null;
}

export interface Step extends StepSummary {
  request: RecordRequest;
  response: RecordResponse | null;
}

/** A body as text, or as base64 if it is not text. */
export interface Body {
  text?: string | null;
  base64?: string | null;
  encoding?: string | null;
  size: number;
  truncated: boolean;
}

export interface Attempt extends AttemptSummary {
  request_headers: Record<string, string>;
  request_body: Body | null;
  response_headers: Record<string, string>;
  response_body: Body | null;
}

export interface ReplayBody {
  model_config_id?: string;
  effort?: Effort | null;
  edits?: { message: number; text: string }[];
}

export interface Answer {
  model: string | null;
  provider: string | null;
  effort: string | null;
  content: RecordPart[];
  finish_reason: string | null;
  usage: Usage | null;
  cost_micros: number | null;
  ttft_ms: number | null;
  duration_ms: number | null;
  error: RecordError | null;
}

export interface Replay {
  recorded: Answer;
  replayed: Answer;
  warnings: string[];
}

/** Filters of the list of runs. */
export interface RunQuery {
  kind?: RunKind | undefined;
  status?: RecordStatus | undefined;
  cursor?: string | undefined;
  limit?: number;
}

const at = (chat: string, rest = "") => `/chats/${encodeURIComponent(chat)}/debug${rest}`;
const stepAt = (chat: string, run: string, step: string, rest = "") => at(chat, `/runs/${run}/steps/${step}${rest}`);

export const listRuns = (chat: string, query: RunQuery, signal?: AbortSignal) =>
  get<RunPage>(at(chat, "/runs"), { ...query }, signal);
export const getRun = (chat: string, run: string, signal?: AbortSignal) =>
  get<RunDetail>(at(chat, `/runs/${encodeURIComponent(run)}`), undefined, signal);
export const getStep = (chat: string, run: string, step: string, signal?: AbortSignal) =>
  get<Step>(stepAt(chat, run, step), undefined, signal);
export const getAttempt = (chat: string, run: string, step: string, number: number, signal?: AbortSignal) =>
  get<Attempt>(stepAt(chat, run, step, `/attempts/${number}`), undefined, signal);
export const replayStep = (chat: string, run: string, step: string, body: ReplayBody) =>
  post<Replay>(stepAt(chat, run, step, "/replay"), body);
export const setDebugMode = (chat: string, mode: DebugMode) =>
  patch<ChatView>(`/chats/${encodeURIComponent(chat)}`, { debug_mode: mode });
export const deleteRecords = (chat: string) => del(at(chat));

/** Return the exported records of a run, or of the whole chat, and the name of the file. */
export async function exportRecords(chat: string, run: string | null): Promise<{ file: Blob; name: string }> {
  const response = await fetchBytes(address(at(chat, "/export"), { run }), chat);
  const named = /filename="?([\w.-]+)/.exec(response.headers.get("Content-Disposition") ?? "")?.[1];
  return { file: await response.blob(), name: named ?? "rookery-debug.json" };
}
