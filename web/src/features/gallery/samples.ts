/** Samples of every tool in every state, for the gallery. Not in the production build. */

import type { AgentView, McpServerView, WorkspaceMcpServerView } from "@/api/types.gen";
import { newTool, type ToolView } from "@/chat/preview";
import type { Row } from "@/chat/timeline_rows";
import { TOOL_NAMES } from "@/chat/tool_texts";
import type { Action, ChatError, Message, Retry } from "@/chat/types";
import { said } from "./appended_words";

const AT = "2026-01-05T10:00:00Z";
const LATER = "2026-01-05T10:00:03.200Z";

const ARGS: Record<string, unknown> = {
  execute: { command: "pytest -q tests/api/test_upload.py && echo done", model_intent: "" },
  process_output: { process_id: "p-1" },
  process_list: {},
  process_signal: { process_id: "p-1", signal: "terminate" },
  read_file: { path: "/home/agent/project/src/upload.py" },
  write_file: { path: "/home/agent/notes.md", content: "# Notes\n\nHello from Rookery.\n" },
  edit_files: {
    files: [{ path: "/home/agent/upload.py", edits: [{ old_text: "return f", new_text: "return await f" }] }],
  },
  attach_file: { path: "/home/agent/report.pdf" },
  list_templates: { query: "python" },
  read_template: { template_id: "python" },
  create_workspace: { template_id: "python", name: "api" },
  start_workspace: {},
  stop_workspace: {},
  read_skill: { name: "release-notes" },
  read_skill_file: { name: "release-notes", path: "template.md" },
  spawn_agent: { type: "explore", prompt: "Find all callers of put()", title: "explore callers" },
  wait_agent: { chat_id: "c-1" },
  message_agent: { chat_id: "c-1", message: "Also look at the tests." },
  interrupt_agent: { chat_id: "c-1" },
  list_agents: {},
  read_agent_report: { chat_id: "c-1" },
  list_subagent_models: {},
  advisor: { question: "Is the lock the right place to fix this?" },
  find_tools: { queries: ["github issues"] },
  ask_user_question: {
    questions: [
      {
        header: "Color",
        question: "Which color should the button have?",
        options: [
          { label: "Blue", description: "Like the rest" },
          { label: "Green", description: "Stands out" },
        ],
      },
    ],
  },
  propose_plan: {},
  web_search: { query: "asyncio lock" },
  github__create_issue: { title: "Flaky test", labels: ["bug"] },
};

const DIFF = "--- a/upload.py\n+++ b/upload.py\n@@ -12,3 +12,3 @@\n def put(f):\n-    return f\n+    return await f\n";

const RESULTS: Record<string, unknown> = {
  execute: {
    success: true,
    output: "\u001b[32m42 passed\u001b[0m in 3.10s\ndone\n",
    exit_code: 0,
    wall_duration_ms: 3200,
  },
  process_output: { success: true, output: "listening on :8080\n", running: true, command: "npm run dev" },
  process_list: { processes: [{ id: "p-1", command: "npm run dev", running: true, started_at: AT }] },
  process_signal: { ok: true },
  read_file: { content: "1\tdef put(f):\n2\t    return f\n", total_lines: 2, lines_read: 2, file_size: 25 },
  write_file: { ok: true, bytes: 31, created: true },
  edit_files: { ok: true, files: [{ path: "/home/agent/upload.py", diff: DIFF, edits: [{ matches: 1, pass: 1 }] }] },
  attach_file: { ok: true, file_id: "f-1", name: "report.pdf", media_type: "application/pdf", size: 123456 },
  list_templates: {
    templates: [{ id: "python", name: "python", display_name: "Python", description: "Python 3 with uv" }],
    recommended_template_id: "python",
  },
  read_template: {
    template: { id: "python", name: "python", description: "Python 3 with uv" },
    parameters: [{ name: "cpus", type: "number", required: true, default: 2 }],
  },
  create_workspace: { created: true, workspace_name: "api", workspace_id: "w-1" },
  start_workspace: { started: true, workspace_name: "api" },
  stop_workspace: { stopped: true, workspace_name: "api" },
  read_skill: { name: "release-notes", body: "# Release notes\n\nWrite them for people who upgrade." },
  read_skill_file: { content: "## Changed\n" },
  spawn_agent: { chat_id: "c-1", title: "explore callers", status: "running", type: "explore" },
  wait_agent: {
    chat_id: "c-1",
    title: "explore callers",
    status: "waiting",
    type: "explore",
    end_id: 1,
    report: "There are **3** callers.",
  },
  read_agent_report: { chat_id: "c-1", title: "explore callers", status: "waiting", report: "All **3** callers." },
  message_agent: { chat_id: "c-1", title: "explore callers", status: "running" },
  interrupt_agent: { chat_id: "c-1", title: "explore callers", interrupted: true },
  list_agents: { agents: [{ title: "explore callers", type: "explore", status: "waiting" }] },
  list_subagent_models: { models: [{ display_name: "Opus", provider: "Anthropic" }] },
  advisor: { type: "advice", advice: "Yes, but hold it **shorter**.", advisor_model: "opus", remaining_uses: 2 },
  find_tools: {
    matches: [{ name: "github__create_issue", description: "Create an issue" }],
    activated: ["github__create_issue"],
  },
  ask_user_question: ARGS.ask_user_question,
  propose_plan: { ok: true, path: "/plan.md", kind: "plan" },
  web_search: {},
  github__create_issue: { url: "https://github.example/1" },
};

export interface Sample {
  title: string;
  call: ToolView;
  active: boolean;
}

/** Return the samples of one tool. */
export function samplesOf(name: string): Sample[] {
  return statesOf(name).map((one) => {
    const { args, output, result } = one.call;
    return { ...one, call: { ...one.call, args: said(args), output: said(output), result: said(result) } };
  });
}

const AGENT: AgentView = {
  chat_id: "c-1",
  parent_chat_id: "gallery",
  tool_call_id: "spawn_agent-4",
  title: "explore callers",
  kind: "explore",
  kind_source: "builtin",
  status: "running",
  phase: "tool",
  stalled: false,
  silent_seconds: 3,
  activity: "execute: rg put",
  outcome: null,
  model_config_id: "m-1",
  reasoning_effort: "high",
  created_at: AT,
  updated_at: "2026-01-05T10:02:05Z",
  running_since: new Date(Date.now() - 42_000).toISOString(),
  deadline_at: null,
  steps: 3,
  tokens: 12_300,
  cost_micros: 420_000,
  unpriced_request_count: 0,
  budget_micros: null,
};
const ended = (outcome: string, status = "waiting") => ({
  status,
  outcome,
  phase: null,
  activity: "There are 3 callers.",
});

/** Subagents in every state. */
export const AGENTS: AgentView[] = [
  {},
  { phase: "model", activity: "" },
  { phase: "queued", steps: 0, tokens: 0, cost_micros: 0, activity: "" },
  { phase: "approval", status: "requires_action", budget_micros: 1_000_000 },
  { phase: "model", stalled: true, silent_seconds: 660 },
  { status: "interrupting" },
  ended("finished"),
  ended("error", "error"),
  ended("interrupted"),
  ended("deadline"),
].map((more, index) => said<AgentView>({ ...AGENT, chat_id: `c-${index + 1}`, ...more }));

/** Return states that only this tool has. */
function ownStates(name: string, call: ToolView): Sample[] {
  const done = (title: string, result: unknown, more: Partial<ToolView> = {}): Sample => ({
    title,
    call: { ...call, hasResult: true, endedAt: LATER, id: `${name}-${title}`, result, ...more },
    active: false,
  });
  switch (name) {
    case "spawn_agent":
      return AGENTS.slice(1).map(({ chat_id, title, status, kind }) =>
        done(chat_id, { chat_id, title, status, type: kind }),
      );
    case "wait_agent":
      return [
        done("several", {
          agents: [
            {
              chat_id: "c-1",
              title: "callers",
              status: "waiting",
              type: "explore",
              end_id: 1,
              report: "**3** callers.",
            },
            { chat_id: "c-2", title: "tests", status: "running", type: "general", phase: "tool", timed_out: true },
            {
              chat_id: "c-3",
              title: "docs",
              status: "waiting",
              type: "general",
              end_id: 2,
              last_error_kind: "deadline",
              last_error: "The subagent was stopped at its time limit. Its report is what it had written so far.",
              report: "Half of it.",
            },
            {
              chat_id: "c-4",
              title: "release notes",
              status: "error",
              type: "general",
              end_id: 3,
              last_error_kind: "overloaded",
              last_error: "The provider did not answer.",
              report: "",
            },
            { chat_id: "c-5", title: "changelog", status: "requires_action", type: "general", phase: "approval" },
          ],
        }),
        done("timed out", {
          chat_id: "c-2",
          title: "tests",
          status: "running",
          type: "general",
          phase: "model",
          stalled: true,
          silent_seconds: 660,
          timed_out: true,
        }),
      ];
    case "advisor":
      return [
        done("limit", {
          type: "limit_reached",
          reason: "The limit of advisor calls in this turn is reached. Continue without the advisor.",
          remaining_uses: 0,
        }),
        done("error", { type: "error", error: "The advisor's model returned no text." }, { isError: true }),
      ];
    case "github__create_issue":
      return [
        done("structured", '{"issue": {"number": 12, "labels": ["bug"]}}'),
        done("text", "Created issue 12."),
        done("unreachable", "GitHub does not answer.", { isError: true }),
      ];
    default:
      return [];
  }
}

function statesOf(name: string): Sample[] {
  const call: ToolView = { ...newTool(`${name}-call`, name), args: ARGS[name] ?? {}, argsDone: true, startedAt: AT };
  const ended = { hasResult: true, endedAt: LATER };
  return [
    { title: "preparing", call: { ...call, id: `${name}-1`, argsDone: false }, active: true },
    { title: "running", call: { ...call, id: `${name}-2` }, active: true },
    {
      title: "streaming",
      call: { ...call, id: `${name}-3`, output: "Resolving\nDownloading 40 %\rDownloading 100 %\n" },
      active: true,
    },
    { title: "done", call: { ...call, ...ended, id: `${name}-4`, result: RESULTS[name] ?? {} }, active: false },
    {
      title: "failed",
      call: {
        ...call,
        ...ended,
        id: `${name}-5`,
        isError: true,
        result: { error: "No workspace is attached, use create_workspace." },
      },
      active: false,
    },
    {
      title: "stopped",
      call: {
        ...call,
        ...ended,
        id: `${name}-6`,
        isError: true,
        result: { error: "Stopped.", reason: "interrupted_by_user" },
      },
      active: false,
    },
    { title: "lost", call: { ...call, id: `${name}-7` }, active: false },
    ...ownStates(name, call),
  ];
}

export const GALLERY_TOOLS = [...TOOL_NAMES, "github__create_issue"];

export const MESSAGE: Message = {
  id: 1,
  chat_id: "gallery",
  role: "user",
  content: [
    { type: "text", text: "Look at these lines:" },
    { type: "file-reference", file_name: "src/put.py", start_line: 2, end_line: 4, content: "return name" },
    { type: "file", file_id: "f-1", name: "report of today.pdf", media_type: "application/pdf" },
  ],
  created_at: AT,
  created_by: null,
  model_config_id: null,
  reasoning_effort: null,
  client_id: null,
  usage: null,
  context_tokens: null,
  finish_reason: null,
  cost_micros: null,
  runtime_ms: null,
};

const FIGURES = {
  endedAt: LATER,
  startedAt: AT,
  modelConfigId: "m-1",
  effort: "high",
  steps: 3,
  input: 12_000,
  cached: 10_000,
  output: 800,
  costMicros: 12_300,
  answer: "All of it.",
  firstMessageId: 1,
  lastMessageId: 1,
};

/** Rows other than tool calls. */
export const ROWS: Row[] = said<Row[]>([
  { kind: "day", key: "d", at: AT },
  { kind: "user", key: "u", message: MESSAGE, inContext: true, steered: false },
  { kind: "prose", key: "p", text: "I will not do that.", refusal: true, messageId: 1 },
  {
    kind: "sources",
    key: "s",
    id: "s",
    sources: [{ type: "source", url: "https://example.org/locks", title: "Locks, explained" }],
  },
  {
    kind: "files",
    key: "f",
    files: [{ type: "file", file_id: "f-1", name: "report of today.pdf", media_type: "application/pdf" }],
  },
  { kind: "notice", key: "n", text: "The other model answered." },
  ...["finished", "error", "interrupted", "deadline"].map((outcome): Row => {
    const isLong = outcome === "finished";
    return {
      kind: "agent",
      key: `agent-${outcome}`,
      notice: {
        type: "agent-notice",
        chat_id: "c-1",
        title: "explore callers",
        kind: "explore",
        outcome,
        report: isLong
          ? `There are **3** callers.\n\n${"- One caller in `upload.py`.\n".repeat(20)}`
          : "So far: **2** callers.",
        report_bytes: isLong ? 20_000 : 22,
        error: outcome === "error" ? "The provider did not answer." : null,
      },
    };
  }),
  { kind: "unknown", key: "x", part: {} },
  { kind: "compaction", key: "c", id: "c", result: { percent: 72, summary: "We **talked** long." }, running: false },
  { kind: "compaction", key: "c2", id: "c2", result: {}, running: true },
  {
    kind: "compaction",
    key: "c3",
    id: "c3",
    result: { source: "overflow", summary: "Long.", calls: 5, rungs: ["pieces", "spill"], spilled: ["a"] },
    running: false,
  },
  { kind: "compaction", key: "c4", id: "c4", result: { source: "overflow", spilled: ["a"] }, running: false },
  {
    kind: "compaction",
    key: "c5",
    id: "c5",
    result: {
      percent: 84,
      error: "The provider did not answer within 60 seconds. The turn goes on without a summary.",
    },
    running: false,
  },
  { kind: "interrupted", key: "i", at: AT, next: "continue", latest: true },
  { kind: "interrupted", key: "i2", at: AT, next: "retry", latest: true },
  {
    kind: "failed",
    key: "f",
    at: AT,
    error: { kind: "rate_limit", message: "The provider allows 60 requests a minute." },
  },
  { kind: "footer", key: "o", figures: FIGURES },
]);

const CALLS = [{ tool_call_id: "t-1", tool_name: "execute", args: { command: "rm -r build && make all" } }];
export const APPROVAL: Action = said<Action>({
  type: "action_required",
  kind: "approval",
  tool_calls: CALLS.map((call) => ({ ...call, always: { chat: { command: "rm *" } } })),
  deadline_at: null,
});
export const ON_HOLD: Action = said<Action>({
  type: "action_required",
  kind: "approval",
  tool_calls: CALLS.slice(0, 1).map((call) => ({
    ...call,
    brake:
      "The agent made the same call of execute 5 times, with the same result each time. The next call is on hold. " +
      "Continue, stop the turn, or tell the agent what to do instead.",
  })),
  deadline_at: null,
});
const QUESTION = (...questions: object[]): Action =>
  said<Action>({
    type: "action_required",
    kind: "approval",
    tool_calls: [
      {
        tool_call_id: "q-1",
        tool_name: "github__create_issue",
        args: {},
        elicitation: { server: "GitHub", questions },
      },
    ],
    deadline_at: null,
  } as Action);
const FORM = {
  id: "form",
  message: "Where should the issue be created?",
  fields: [
    { name: "repository", kind: "choice", required: true, options: [{ value: "api" }, { value: "web" }] },
    { name: "title", kind: "text", title: "Title", description: "One line", required: true, default: "Flaky test" },
    { name: "text", kind: "text", title: "Text", maximum: 4000 },
    { name: "mail", kind: "text", title: "Who is told", format: "email" },
    { name: "due", kind: "text", title: "Due", format: "date" },
    { name: "points", kind: "integer", title: "Points", minimum: 1, maximum: 8 },
    { name: "labels", kind: "choices", title: "Labels", options: [{ value: "bug" }, { value: "ci", title: "CI" }] },
    { name: "urgent", kind: "boolean", title: "Urgent" },
  ],
};
/** Questions of an MCP server: a form, an address, a form that cannot be shown, and two calls at once. */
export const QUESTIONS: Action[] = [
  QUESTION(FORM),
  QUESTION({ id: "page", message: "Sign in to go on.", url: "https://github.example/login/device" }),
  QUESTION({ id: "new", message: "Which color?", fields: [{ name: "color", kind: "color", required: true }] }),
  QUESTION(),
  {
    ...QUESTION({ id: "sure", message: "Delete it?" }),
    tool_calls: [...QUESTION({ id: "sure", message: "Delete it?" }).tool_calls, ...said<Action>(APPROVAL).tool_calls],
  },
];
const SERVER: WorkspaceMcpServerView = {
  name: "docs",
  hash: "0".repeat(64),
  state: "asked",
  folder: "/home/agent/project",
  command: "npx",
  args: ["-y", "@example/docs-mcp@1.4.2", "--root", "/home/agent/project/documentation and notes", "a\\u202eb"],
  env: ["DOCS_TOKEN", "NODE_OPTIONS"],
  url: null,
  type: null,
  headers: [],
  server: null,
  login: null,
  running: false,
  error: null,
  tools: [],
  decided_at: null,
};
/** A server with an address, which gets a header with a variable in it. */
export const REMOTE: WorkspaceMcpServerView = {
  ...SERVER,
  name: "tracker",
  hash: "5".repeat(64),
  command: null,
  args: [],
  env: ["TRACKER_TOKEN"],
  url: "https://tracker.example.org/teams/blue/mcp",
  type: "http",
  headers: ["Authorization", "X-Team"],
};
export const SERVERS: [WorkspaceMcpServerView, ...WorkspaceMcpServerView[]] = [
  SERVER,
  { ...SERVER, name: "issues", hash: "1".repeat(64), state: "changed" },
  { ...SERVER, name: "search", hash: "2".repeat(64), state: "agreed", running: true, tools: ["find", "read"] },
  {
    ...SERVER,
    name: "broken",
    hash: "3".repeat(64),
    state: "agreed",
    error: "The server cannot be used: it has ended.",
  },
  { ...SERVER, name: "unwanted", hash: "4".repeat(64), state: "denied", args: [], env: [] },
  { ...REMOTE, state: "agreed", running: true, tools: ["find", "comment"] },
  { ...REMOTE, name: "mail", hash: "6".repeat(64), state: "agreed", running: true, server: "mail", login: "none" },
];
const CONNECTION: McpServerView = {
  id: "issues",
  slug: "issues",
  display_name: "Issues",
  description: "Issues and comments of the team",
  icon: "",
  enabled: true,
  availability: "default_on",
  auth_type: "oauth2",
  is_own: false,
  workspace_id: null,
  is_editable: false,
  connected: false,
  login: { state: "none" },
};
/** Servers in every state of a login, one that is forced on, and one of the project. */
export const CONNECTIONS: McpServerView[] = [
  CONNECTION,
  { ...CONNECTION, id: "docs", display_name: "Documents", login: { state: "connected" }, connected: true },
  {
    ...CONNECTION,
    id: "mail",
    display_name: "A server for mail with a name that does not fit in one line",
    login: { state: "expired", reason: "The server has ended the login." },
  },
  {
    ...CONNECTION,
    id: "calendar",
    display_name: "Calendar",
    login: { state: "insufficient", missing_scopes: ["calendar.write", "calendar.share"] },
  },
  { ...CONNECTION, id: "audit", display_name: "Audit", availability: "force_on", auth_type: "none" },
  { ...CONNECTION, id: "tracker", display_name: "tracker", auth_type: "none", workspace_id: "gallery", is_own: true },
];
export const DYNAMIC: Action = said<Action>({
  type: "action_required",
  kind: "tools",
  tool_calls: CALLS,
  deadline_at: null,
});
export const RETRY: Retry = said<Retry>({
  attempt: 3,
  delay_ms: 8000,
  error: "Overloaded for now",
  kind: "overloaded",
  provider: "Anthropic",
  retrying_at: new Date(Date.now() + 3_600_000).toISOString(),
});
export const ERRORS: ChatError[] = [
  "overloaded",
  "rate_limit",
  "timeout",
  "auth",
  "missing_key",
  "usage_limit",
  "content_filter",
  "hook_denied",
  "chat_invalid_state",
  "unheard_of",
].map((kind) => ({
  kind,
  ...said({
    message: "The provider said no.",
    provider: "Anthropic",
    detail: "detail of the provider",
  }),
  status_code: 500,
}));
export const TEXT: string = said(
  "A paragraph with **bold**, `code` and [a link](https://example.org).\n\n```python\nprint(1)\n```\n\n| a | b |\n| - | - |\n| 1 | 2 |\n",
);
export const THOUGHT: string = said("**The lock** I should look at it.");
export const PROMPT: string = said("On its way");
export const FAILURE: string = said("The server cannot be reached.");
