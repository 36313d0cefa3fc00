/** Every tool in every state, for looking at. Not in the application's own build. */
import { newTool, type ToolView } from "@/chat/preview";
import { TOOL_NAMES } from "@/chat/tools";

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
  list_subagent_models: {},
  advisor: { question: "Is the lock the right place to fix this?" },
  find_tools: { queries: ["github issues"] },
  ask_user_question: {
    questions: [
      {
        header: "Colour",
        question: "Which colour should the button have?",
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
    report: "There are **3** callers.",
  },
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

/** The states of one tool. */
export function samplesOf(name: string): Sample[] {
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
  ];
}

export const GALLERY_TOOLS = [...TOOL_NAMES, "github__create_issue"];
