/** Samples of debug records in every state, for the gallery. Not in the production build. */
import type {
  Attempt,
  AttemptSummary,
  Cache,
  Comparison,
  Places,
  Recording,
  RecordMessage,
  Replay,
  Run,
  RunDetail,
  Step,
  StepSummary,
} from "@/api/debug";
import { said } from "./appended_words";

const AT = "2026-01-05T10:00:00Z";
const after = (ms: number) => new Date(Date.parse(AT) + ms).toISOString();

const RUN: Run = {
  id: "run-1",
  chat_id: "gallery",
  parent_run_id: null,
  root_chat_id: "gallery",
  parent_chat_id: null,
  kind: "chat_turn",
  status: "completed",
  provider: "anthropic",
  model: "opus",
  model_config_id: "m-1",
  trigger_message_id: 1,
  history_tip_message_id: 4,
  summary: {
    first_message: "why does test_upload fail on CI, and only there? Look at the workflow and at the last five runs.",
    endpoint_label: "POST /v1/messages",
    ttft_ms: 840,
    step_count: 3,
    attempt_count: 4,
    retry_count: 1,
    total_input_tokens: 9_200,
    total_cache_read_tokens: 112_000,
    total_output_tokens: 3_400,
    cost_micros: 312_000,
  },
  started_at: AT,
  updated_at: after(31_000),
  finished_at: after(31_000),
};

/** Runs of every kind and status. */
export const RUNS: Run[] = said<Run[]>([
  { ...RUN, id: "run-0", status: "in_progress", finished_at: null, summary: { first_message: "and on Windows?" } },
  RUN,
  {
    ...RUN,
    id: "run-2",
    parent_run_id: "run-1",
    kind: "compaction",
    model: "haiku",
    summary: {
      first_message: "Compaction",
      step_count: 1,
      total_input_tokens: 88_000,
      total_output_tokens: 900,
      cost_micros: 21_000,
    },
    finished_at: after(6_200),
  },
  {
    ...RUN,
    id: "run-3",
    parent_run_id: "run-1",
    kind: "advisor",
    summary: { first_message: "Is the lock the right place to fix this?", step_count: 1 },
  },
  {
    ...RUN,
    id: "run-4",
    status: "error",
    summary: { ...RUN.summary, first_message: "Deploy it", has_error: true, retry_count: 4, step_count: 1 },
  },
  { ...RUN, id: "run-5", status: "interrupted", summary: { first_message: "Write a long story" } },
  {
    ...RUN,
    id: "run-6",
    kind: "title_generation",
    model: "haiku",
    summary: { first_message: "why does test_upload fail" },
  },
  { ...RUN, id: "run-7", kind: "quickgen", model: null, summary: {} },
]);

export const RECORDINGS: Recording[] = [
  { mode: "inherit", is_on: false, is_forced: false, is_allowed: true },
  { mode: "on", is_on: true, is_forced: false, is_allowed: true },
  { mode: "inherit", is_on: true, is_forced: true, is_allowed: false },
  { mode: "inherit", is_on: false, is_forced: false, is_allowed: false },
];

const ATTEMPT: AttemptSummary = {
  number: 1,
  status: "completed",
  generation_attempt: 1,
  method: "POST",
  url: "https://api.example.org/v1/messages?beta=true",
  path: "/v1/messages",
  response_status: 200,
  error: null,
  ttfb_ms: 780,
  duration_ms: 7_600,
  retry_kind: null,
  retry_delay_ms: null,
  started_at: AT,
  finished_at: after(7_600),
  request_bytes: 412_000,
  response_bytes: 24_300,
};
const REFUSED: AttemptSummary = {
  ...ATTEMPT,
  response_status: 429,
  ttfb_ms: 390,
  duration_ms: 400,
  error: "rate_limit_error: this request would exceed the limit of your organization",
  retry_kind: "rate_limit",
  retry_delay_ms: 1_300,
  response_bytes: 210,
};

const STEP: StepSummary = {
  id: "step-1",
  number: 1,
  operation: "stream",
  status: "completed",
  provider: "anthropic",
  model: "opus",
  model_config_id: "m-1",
  history_tip_message_id: 1,
  assistant_message_id: 2,
  message_count: 2,
  shared_messages: 0,
  tool_count: 3,
  usage: {
    input_tokens: 320,
    cache_read_tokens: 0,
    cache_creation_tokens: 38_100,
    output_tokens: 1_200,
    reasoning_tokens: 410,
    total_tokens: 39_620,
  },
  cost_micros: 251_000,
  finish_reason: "tool_calls",
  error: null,
  metadata: { stream_summary: { tool_call_count: 2, finish_reason: "tool_calls" } },
  started_at: AT,
  finished_at: after(7_700),
  ttft_ms: 840,
  cache: { broke_at: null, reason: "first_step", uncached_tokens: 38_420, cost_micros: 240_000 },
  attempts: [ATTEMPT],
};

const cache = (reason: Cache["reason"], broke_at: number | null): Cache => ({
  broke_at,
  reason,
  uncached_tokens: 38_400,
  cost_micros: 115_000,
});

/** Steps of every status, and of every reason for a cache miss. */
export const STEPS: StepSummary[] = said<StepSummary[]>([
  STEP,
  {
    ...STEP,
    id: "step-2",
    number: 2,
    message_count: 6,
    shared_messages: 2,
    usage: { ...STEP.usage, cache_read_tokens: 38_100, cache_creation_tokens: 2_400, input_tokens: 12 },
    cost_micros: 31_000,
    metadata: {
      stream_summary: { tool_call_count: 1 },
      prior_errors: [{ kind: "rate_limit", message: "This request would exceed the limit.", generation_attempt: 1 }],
    },
    cache: cache("none", null),
    attempts: [
      REFUSED,
      { ...ATTEMPT, number: 2, generation_attempt: 2, started_at: after(1_700), ttfb_ms: 900, duration_ms: 6_000 },
    ],
  },
  { ...STEP, id: "step-3", number: 3, shared_messages: 3, message_count: 6, cache: cache("messages_changed", 3) },
  { ...STEP, id: "step-4", number: 4, shared_messages: 6, message_count: 8, cache: cache("tools_changed", null) },
  { ...STEP, id: "step-5", number: 5, shared_messages: 6, message_count: 8, cache: cache("model_changed", null) },
  { ...STEP, id: "step-6", number: 6, shared_messages: 6, message_count: 8, cache: cache("expired", null) },
  { ...STEP, id: "step-7", number: 7, shared_messages: 6, message_count: 8, cache: cache("unknown", null) },
  {
    ...STEP,
    id: "step-8",
    number: 8,
    status: "error",
    finish_reason: null,
    usage: null,
    cost_micros: null,
    ttft_ms: null,
    assistant_message_id: null,
    cache: null,
    error: {
      message: "The provider is overloaded. Try again later.",
      type: "ProviderError",
      kind: "overloaded",
      provider_status: 529,
      request_id: "req_011CSHoEeqs5C35K2UUqR7Fy",
      retryable: true,
    },
    metadata: {
      prior_errors: [
        { kind: "overloaded", message: "Overloaded", generation_attempt: 1 },
        { kind: "timeout", message: "No answer within 60 seconds.", generation_attempt: 2 },
      ],
    },
    finished_at: after(9_000),
    attempts: [
      { ...REFUSED, response_status: 529, error: "Overloaded", retry_kind: "overloaded" },
      {
        ...REFUSED,
        number: 2,
        status: "failed",
        response_status: null,
        ttfb_ms: null,
        duration_ms: 4_000,
        error: "The connection was closed before the response.",
        retry_kind: "timeout",
        started_at: after(1_700),
      },
      { ...REFUSED, number: 3, response_status: 529, error: "Overloaded", retry_kind: null, started_at: after(8_000) },
    ],
  },
  {
    ...STEP,
    id: "step-9",
    number: 9,
    status: "interrupted",
    finish_reason: null,
    metadata: {},
    cache: null,
    attempts: [{ ...ATTEMPT, status: "aborted", error: "user", duration_ms: 2_100 }],
    finished_at: after(2_200),
  },
  {
    ...STEP,
    id: "step-10",
    number: 10,
    status: "in_progress",
    usage: null,
    cost_micros: null,
    metadata: { retrying: { delay_ms: 8_000 } },
    finished_at: null,
    started_at: new Date(Date.now() - 4_000).toISOString(),
    cache: null,
    attempts: [{ ...REFUSED, started_at: new Date(Date.now() - 4_000).toISOString() }],
  },
]);

export const RUN_DETAIL: RunDetail = { ...(RUNS[1] ?? RUN), steps: STEPS };

const MESSAGES: RecordMessage[] = said<RecordMessage[]>([
  {
    role: "system",
    parts: [
      {
        type: "text",
        text: `You are an agent that works in a repository.\n\n${"Prefer small changes, and run the tests after each of them.\n".repeat(40)}`.trimEnd(),
        text_length: 24_300,
      },
    ],
  },
  {
    role: "user",
    parts: [
      { type: "text", text: "why does test_upload fail on CI, and only there?" },
      { type: "file", filename: "log of the run.png", media_type: "image/png" },
    ],
  },
  {
    role: "assistant",
    parts: [
      { type: "reasoning", text: "The name says that it fails only on CI, so timing is likely." },
      { type: "text", text: "I look at the test first." },
      {
        type: "tool-call",
        tool_call_id: "toolu_01A09q90qw90lq917835lq9",
        tool_name: "read_file",
        arguments: '{"path":"tests/api/test_upload.py","limit":200}',
      },
    ],
  },
  {
    role: "tool",
    parts: [
      {
        type: "tool-result",
        tool_call_id: "toolu_01A09q90qw90lq917835lq9",
        tool_name: "read_file",
        result: `{"content":"1\\tasync def test_upload(client):\\n2\\t    await client.put('/files')\\n","total_lines":2}`,
      },
    ],
  },
  { role: "assistant", parts: [{ type: "text", text: "The test races with the cleanup task." }] },
  { role: "user", parts: [{ type: "text", text: "Then fix it." }] },
]);

/** The whole step of each summary. */
export function wholeStep(summary: StepSummary): Step {
  return {
    ...summary,
    shared_messages: Math.min(summary.shared_messages, MESSAGES.length),
    request: {
      messages: MESSAGES,
      tools: said([
        {
          type: "function",
          name: "read_file",
          description: "Read a file of the workspace. Lines are numbered.",
          input_schema: {
            type: "object",
            properties: { path: { type: "string", description: "The path" }, limit: { type: "integer" } },
            required: ["path"],
          },
        },
        { type: "function", name: "execute", description: "Run a command in the workspace." },
        { type: "web_search_20260101", name: "web_search" },
      ]),
      options: { max_output_tokens: 32_000, temperature: 1 },
      effort: "high",
      tool_choice: "auto",
      provider_option_names: ["cache_control"],
    },
    response:
      summary.status === "completed"
        ? {
            content: said([
              { type: "reasoning", text: "The cleanup task deletes the folder while the upload is still open." },
              { type: "text", text: "The test races with the cleanup task. I wait for it." },
              {
                type: "tool-call",
                tool_call_id: "toolu_02",
                tool_name: "execute",
                arguments: '{"command":"pytest -q tests/api/test_upload.py"}',
              },
              { type: "source", title: "asyncio locks", url: "https://example.org/locks" },
            ]),
            finish_reason: summary.finish_reason,
            usage: summary.usage,
            warnings: said([{ type: "unsupported_setting", setting: "top_k", message: "The model ignores it." }]),
          }
        : null,
  };
}

const EVENTS = [
  'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_01","usage":{"input_tokens":320}}}',
  ...Array.from(
    { length: 12 },
    (_, index) =>
      `event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"word ${index} "}}`,
  ),
  'event: message_stop\ndata: {"type":"message_stop"}',
].join("\n\n");

const HEADERS = {
  "content-type": "application/json",
  "x-api-key": "[REDACTED]",
  "anthropic-version": "2023-06-01",
};

/** Attempts with bodies: an event stream, an error, and bodies that are not text. */
export const ATTEMPTS: Attempt[] = said<Attempt[]>([
  {
    ...ATTEMPT,
    request_headers: HEADERS,
    request_body: {
      text: JSON.stringify({
        model: "opus",
        max_tokens: 32_000,
        metadata: {},
        system: [{ type: "text", text: "You are an agent that works in a repository. ".repeat(20) }],
        messages: Array.from({ length: 6 }, (_, index) => ({
          role: index % 2 ? "assistant" : "user",
          content: [
            { type: "text", text: `Message ${index}`, cache_control: index === 5 ? { type: "ephemeral" } : null },
          ],
        })),
        signature: "[base64 4096 bytes]",
        stream: true,
      }),
      encoding: "utf-8",
      size: 412_000,
      truncated: true,
    },
    response_headers: {
      "content-type": "text/event-stream; charset=utf-8",
      "request-id": "req_011CSHoEeqs5C35K2UUqR7Fy",
    },
    response_body: { text: EVENTS, encoding: "utf-8", size: EVENTS.length, truncated: false },
  },
  {
    ...REFUSED,
    request_headers: HEADERS,
    request_body: null,
    response_headers: { "content-type": "application/json", "retry-after": "1" },
    response_body: {
      text: '{"type":"error","error":{"type":"rate_limit_error","message":"This request would exceed the limit."}}',
      encoding: "utf-8",
      size: 210,
      truncated: false,
    },
  },
  {
    ...ATTEMPT,
    number: 3,
    request_headers: {},
    request_body: { text: "", encoding: "utf-8", size: 0, truncated: false },
    response_headers: { "content-type": "application/octet-stream" },
    response_body: { text: "AAECAwQFBgcICQoLDA0ODw==", encoding: "base64", size: 16, truncated: false },
  },
]);

export const REPLAY: Replay = said<Replay>({
  recorded: {
    model: "opus",
    provider: "anthropic",
    effort: "high",
    content: [{ type: "text", text: "The test races with the cleanup task. I wait for it." }],
    finish_reason: "stop",
    usage: { input_tokens: 320, cache_read_tokens: 38_100, output_tokens: 1_200 },
    cost_micros: 31_000,
    ttft_ms: 840,
    duration_ms: 7_600,
    error: null,
  },
  replayed: {
    model: "haiku",
    provider: "anthropic",
    effort: null,
    content: [
      { type: "text", text: "The upload is not awaited." },
      { type: "tool-call", tool_call_id: "t", tool_name: "execute", arguments: '{"command":"pytest -q"}' },
    ],
    finish_reason: "tool_calls",
    usage: { input_tokens: 38_400, output_tokens: 300 },
    cost_micros: 9_000,
    ttft_ms: 310,
    duration_ms: 1_900,
    error: null,
  },
  warnings: ["The image in message 2 was not recorded. The replay does without it."],
});

const prompted = (time: string): RecordMessage => ({
  role: "system",
  parts: [{ type: "text", text: `You are an agent. The time is ${time}. Read before you write.`, text_length: 60 }],
});

/** Two runs of one message; the second took another way and has one step more. */
export const COMPARISON: Comparison = said<Comparison>({
  one: {
    run: RUN,
    figures: {
      step_count: 2,
      input_tokens: 9_200,
      output_tokens: 3_400,
      reasoning_tokens: 0,
      cache_read_tokens: 112_000,
      cache_creation_tokens: 0,
      cost_micros: 312_000,
      ttft_ms: 840,
      duration_ms: 31_000,
    },
  },
  other: {
    run: { ...RUN, id: "run-9", status: "interrupted", model: "haiku" },
    figures: {
      step_count: 3,
      input_tokens: 121_000,
      output_tokens: 900,
      reasoning_tokens: 0,
      cache_read_tokens: 0,
      cache_creation_tokens: 0,
      cost_micros: null,
      ttft_ms: 310,
      duration_ms: null,
    },
  },
  steps: [1, 2, 3].map((number) => ({
    number,
    one:
      number === 3
        ? null
        : {
            id: `step-${number}`,
            status: "completed" as const,
            model: "opus",
            message_count: 2 * number,
            usage: { input_tokens: 320, cache_read_tokens: 38_100, output_tokens: 1_200 },
            cost_micros: 31_000,
            ttft_ms: 840,
            duration_ms: 7_600,
          },
    other: {
      id: `other-${number}`,
      status: "completed" as const,
      model: "haiku",
      message_count: 2 * number,
      usage: { input_tokens: 38_400, output_tokens: 300 },
      cost_micros: null,
      ttft_ms: 310,
      duration_ms: 1_900,
    },
    same_messages: number === 3 ? null : number === 1 ? 2 : 0,
    changed: number === 3 ? null : ["model", "tools", "effort"],
    has_same_answer: number === 3 ? null : number === 1,
  })),
  message: { number: 2, index: 0, one: prompted("09:12:51"), other: prompted("09:41:07") },
  tools: { number: 1, only_one: ["execute"], only_other: [], changed: ["read_file"] },
});

export const PLACES: Places = said<Places>({
  places: [
    {
      step_id: "step-1",
      number: 1,
      kind: "message",
      message: 1,
      role: "user",
      before: "why does ",
      found: "test_upload",
      after: " fail on CI, and only there?",
    },
  ],
  is_complete: true,
});
