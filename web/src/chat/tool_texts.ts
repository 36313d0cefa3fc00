/** Texts of tool cards: labels, states, and the summary line of a group. */
import type { ToolView } from "@/chat/preview";

export type ToolState =
  | "preparing"
  | "running"
  | "streaming"
  | "done"
  | "failed"
  | "stopped"
  | "denied"
  | "limit"
  | "background"
  | "needs_you"
  | "lost";

/** The built-in tools; each has an entry in features/tools/registry.ts. */
export const TOOL_NAMES = [
  "execute",
  "process_output",
  "process_list",
  "process_signal",
  "read_file",
  "write_file",
  "edit_files",
  "attach_file",
  "list_templates",
  "read_template",
  "create_workspace",
  "start_workspace",
  "stop_workspace",
  "read_skill",
  "read_skill_file",
  "spawn_agent",
  "wait_agent",
  "message_agent",
  "interrupt_agent",
  "list_agents",
  "read_agent_report",
  "list_subagent_models",
  "advisor",
  "find_tools",
  "ask_user_question",
  "propose_plan",
  "web_search",
] as const;

const ALONE = new Set([
  "propose_plan",
  "ask_user_question",
  "spawn_agent",
  "wait_agent",
  "message_agent",
  "interrupt_agent",
  "list_agents",
  "read_agent_report",
  "list_subagent_models",
  "advisor",
  "create_workspace",
  "start_workspace",
  "stop_workspace",
  "attach_file",
  "chat_summarized",
]);

export type Fields = Record<string, unknown>;

export function fields(value: unknown): Fields {
  return value !== null && typeof value === "object" && !Array.isArray(value) ? (value as Fields) : {};
}

export function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

export function number(value: unknown): number | null {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

export function list(value: unknown): Fields[] {
  return Array.isArray(value) ? value.map(fields) : [];
}

/** Return whether a call may be part of a group. Plans, questions, agents and workspace errors are always visible. */
export function isGroupable(call: ToolView): boolean {
  return !ALONE.has(call.name);
}

/** Return whether a call has nothing to show yet, such as a command without text. */
export function isQuiet(call: ToolView): boolean {
  return call.name === "execute" && !call.argsDone && !text(fields(call.args).command);
}

const REASONS: Record<string, string> = {
  new_user_message: "Replaced by your message",
  queued_message: "Replaced by your message",
  message_edited: "Removed by edit",
  interrupted_by_user: "Stopped",
  interrupted_by_message: "Replaced by your message",
  action_timed_out: "Timed out waiting for you",
  action_deadline_missing: "Timed out waiting for you",
  approval_timed_out: "Timed out waiting for you",
  interrupted: "Stopped",
  nudged: "Stopped",
  invalid_state: "Stopped",
};

/** Return why a call was closed before it finished. */
export function closedBecause(call: ToolView): string | null {
  const code = text(fields(call.result).reason);
  return call.isError && Object.hasOwn(REASONS, code) ? (REASONS[code] ?? null) : null;
}

/** Return whether the result of a call that was stopped says that the call had begun. */
export function hasRun(result: Fields): boolean {
  return number(result.wall_duration_ms) !== null || text(result.output) !== "";
}

const DENIED: Record<string, string> = { denied_by_user: "Denied by you", denied_by_rule: "Denied by a rule" };

/** Return who denied the call, and what they wrote about it; null if it was not denied. */
export function denialOf(call: ToolView): { by: string; why: string } | null {
  const result = fields(call.result);
  const by = call.isError ? DENIED[text(result.reason)] : undefined;
  return by ? { by, why: text(result.comment) } : null;
}

/** Return the state of a call. `active`: its turn is still running. */
export function stateOf(call: ToolView, active: boolean): ToolState {
  const result = fields(call.result);
  if (!call.hasResult) {
    if (!active) return "lost";
    if (!call.argsDone) return "preparing";
    return call.output ? "streaming" : "running";
  }
  if (denialOf(call) !== null) return "denied";
  if (closedBecause(call)) return "stopped";
  if (text(result.type) === "limit_reached" || text(result.error_code) === "quota_exceeded") return "limit";
  if (call.isError) return "failed";
  if (text(result.background_process_id) && result.running !== false) return "background";
  return "done";
}

/** Return the subagents of a result of `wait_agent`, which tells about one or several. */
export function waitedFor(result: Fields): Fields[] {
  if (Array.isArray(result.agents)) return list(result.agents);
  return text(result.chat_id) ? [result] : [];
}

/** Return the error of a call in one line. */
export function failureOf(call: ToolView): string {
  const result = fields(call.result);
  const said = text(result.message) || text(result.error) || text(call.result);
  return said.split("\n", 1)[0] ?? "";
}

/** Return the exit code of a command that ended with an error; null if it did not, or still runs. */
export function badExitOf(call: ToolView): number | null {
  if (call.name !== "execute" && call.name !== "process_output") return null;
  const result = fields(call.result);
  const exit = result.running === true || text(result.background_process_id) ? null : number(result.exit_code);
  return exit === 0 ? null : exit;
}

/** Return the call of a group that a reader looks for: the first that failed, else the first command with a bad exit. */
export function firstProblem(calls: readonly ToolView[], states: readonly ToolState[]): ToolView | null {
  return calls[states.indexOf("failed")] ?? calls.find((call, at) => states[at] === "done" && badExitOf(call)) ?? null;
}

export function baseName(path: string): string {
  return path.replace(/\/+$/, "").split("/").pop() || path;
}

/** Return the command on one line as it is written, because flags and redirects matter; cut at its end if it is long. */
export function commandOf(call: ToolView): string {
  const command = text(fields(call.args).command) || text(fields(call.result).command);
  const [first = "", ...others] = command.trim().split("\n");
  const shown = others.length > 0 ? `${first.trimEnd()}…` : first;
  return shown.length > 80 ? `${shown.slice(0, 79)}…` : shown;
}

interface Counts {
  added: number;
  removed: number;
}

/** Count the lines that a unified diff adds and removes. */
export function diffCounts(diff: string): Counts {
  let added = 0;
  let removed = 0;
  for (const line of diff.split("\n")) {
    if (line.startsWith("+") && !line.startsWith("+++")) added += 1;
    else if (line.startsWith("-") && !line.startsWith("---")) removed += 1;
  }
  return { added, removed };
}

/** "3.2 s", "41 s", "2 min 5 s". */
export function duration(ms: number): string {
  if (ms < 1000) return `${Math.max(0, Math.round(ms / 100)) / 10} s`;
  if (ms < 10_000) return `${Math.round(ms / 100) / 10} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return seconds % 60 ? `${minutes} min ${seconds % 60} s` : `${minutes} min`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function took(call: ToolView): number | null {
  const own = number(fields(call.result).wall_duration_ms);
  if (own !== null) return own;
  if (!call.startedAt || !call.endedAt) return null;
  const ms = Date.parse(call.endedAt) - Date.parse(call.startedAt);
  return Number.isFinite(ms) && ms >= 0 ? ms : null;
}

export const capital = (line: string) => line.charAt(0).toUpperCase() + line.slice(1);

export const some = (count: number, one: string, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;

const NOT_OVER: ReadonlySet<ToolState> = new Set(["preparing", "running", "streaming", "needs_you", "lost"]);

/** Return the subagents that a call of `wait_agent` waits for. */
export function awaitedIds(args: Fields): string[] {
  const several = Array.isArray(args.chat_ids) ? args.chat_ids : [];
  return [args.chat_id, ...several].map(text).filter(Boolean);
}

/** Return the header text of a card. `titleOf` returns the title of a subagent, or "" if it is unknown. */
export function labelOf(call: ToolView, state: ToolState, titleOf: (id: string) => string = () => ""): string {
  const args = fields(call.args);
  const result = fields(call.result);
  const intent = text(args.model_intent);
  const over = !NOT_OVER.has(state);
  const failed = state === "failed" || state === "stopped";
  const name = baseName(text(args.path));
  const agent = text(result.title) || titleOf(text(args.chat_id)) || "an agent";
  if (state === "denied") {
    const what = commandOf(call) || `${words(call.name)} ${name}`.trim();
    return `Denied: ${call.name === "execute" ? what : intent || what}`;
  }
  if (state === "needs_you" && call.name !== "execute")
    return intent || capital(`${words(call.name)} ${commandOf(call) || name}`);
  switch (call.name) {
    case "execute": {
      const command = commandOf(call);
      // An approval is about the command, not about what the model says about it.
      if (state === "needs_you") return `Asks to run ${command}`;
      if (intent) return intent;
      if (!over) return command ? `Running ${command}` : "Preparing a command";
      if (failed && call.isError && !hasRun(result)) return `Did not run ${command}`;
      return `${state === "stopped" ? "Began" : "Ran"} ${command}`;
    }
    case "process_output": {
      const command = text(result.command).split("\n", 1)[0] || "a process";
      return intent || `${over ? "Checked" : "Checking"} ${command}`;
    }
    case "process_list":
      return over && !failed
        ? `Listed ${some(list(result.processes).length, "process", "processes")}`
        : "Listing processes";
    case "process_signal":
      return `${over ? "Sent" : "Sending"} ${text(args.signal) === "kill" ? "KILL" : "TERM"}`;
    case "read_file": {
      const from = number(args.offset) ?? 1;
      const lines = number(result.lines_read);
      const partial = lines !== null && (from > 1 || number(result.total_lines) !== lines);
      return `${failed ? "Could not read" : over ? "Read" : "Reading"} ${name || "a file"}${partial ? ` (lines ${from}-${from + lines - 1})` : ""}`;
    }
    case "write_file":
      return `${over && !failed ? "Wrote" : failed ? "Could not write" : "Writing"} ${name || "a file"}`;
    case "edit_files": {
      const files = list(result.files).length > 0 ? list(result.files) : list(args.files);
      const what = files.length === 1 ? baseName(text(files[0]?.path)) || "a file" : some(files.length, "file");
      return `${over && !failed ? "Edited" : failed ? "Could not edit" : "Editing"} ${what}`;
    }
    case "attach_file":
      return `${failed ? "Could not attach" : over ? "Attached" : "Attaching"} ${text(result.name) || name || "a file"}`;
    case "list_templates":
      return over && !failed ? `Found ${some(list(result.templates).length, "template")}` : "Looking for templates";
    case "read_template": {
      const template = fields(result.template);
      const known = text(template.display_name) || text(template.name) || text(args.template_id);
      return `${over ? "Read" : "Reading"} template ${known}`;
    }
    case "create_workspace": {
      const known = text(result.workspace_name) || text(args.name) || text(args.template_id);
      if (over && result.created === false) return `Workspace ${known} is there already`;
      return `${over && !failed ? "Created" : failed ? "Could not create" : "Creating"} workspace ${known}`;
    }
    case "start_workspace":
      return `${over && !failed ? "Started" : failed ? "Could not start" : "Starting"} workspace ${text(result.workspace_name)}`.trim();
    case "stop_workspace":
      return `${over && !failed ? "Stopped" : failed ? "Could not stop" : "Stopping"} workspace ${text(result.workspace_name)}`.trim();
    case "read_skill":
      return `${over ? "Read" : "Reading"} skill ${text(args.name)}`;
    case "read_skill_file":
      return `${over ? "Read" : "Reading"} ${text(args.path)} of skill ${text(args.name)}`;
    case "spawn_agent":
      return `Agent: ${text(result.title) || text(args.title) || text(args.prompt).split("\n", 1)[0]?.slice(0, 60) || "subagent"}`;
    case "wait_agent": {
      const asked = awaitedIds(args);
      const told = call.isError ? [] : waitedFor(result);
      const count = told.length || asked.length || 1;
      const who = count === 1 ? text(told[0]?.title) || titleOf(asked[0] ?? "") || "an agent" : some(count, "agent");
      if (!over) return `Waiting for ${who}`;
      const working = told.filter((one) => one.timed_out === true).length;
      const late = working === 0 ? "" : count === 1 ? ", still working" : `, ${working} still working`;
      return `${failed ? "Did not wait" : "Waited"} for ${who}${late}`;
    }
    case "message_agent":
      return `${failed ? "Could not message" : over ? "Messaged" : "Messaging"} ${agent}`;
    case "interrupt_agent":
      if (over && !failed && result.interrupted === false)
        return `${agent === "an agent" ? "The agent" : agent} was at rest already`;
      return `${failed ? "Could not stop" : over ? "Stopped" : "Stopping"} ${agent}`;
    case "read_agent_report":
      return `${failed ? "Could not read" : over ? "Read" : "Reading"} the report of ${agent}`;
    case "list_agents":
      return failed
        ? "Could not list agents"
        : over
          ? `Listed ${some(list(result.agents).length, "agent")}`
          : "Listing agents";
    case "list_subagent_models":
      return failed ? "Could not list models" : over ? some(list(result.models).length, "model") : "Listing models";
    case "advisor": {
      const isRefused = failed || state === "limit";
      const label = `${isRefused ? "Could not consult" : over ? "Consulted" : "Consulting"} the advisor`;
      return intent ? `${label}: ${intent}` : label;
    }
    case "find_tools":
      return over && !failed ? `Found ${some(list(result.matches).length, "tool")}` : "Searching for tools";
    case "ask_user_question":
      return "Asks you";
    case "propose_plan":
      return over && !failed ? "Plan ready" : failed ? "Plan not accepted" : "Writing a plan";
    case "web_search":
      return over ? "Searched the web" : "Searching the web";
    default:
      return intent || words(call.name);
  }
}

/** `github__create_issue` as "github: create issue". */
export function words(name: string): string {
  const [server, ...rest] = name.split("__");
  const said = (value: string) => value.replace(/[_-]+/g, " ").trim();
  return rest.length > 0 ? `${said(server ?? "")}: ${said(rest.join(" "))}` : said(name);
}

const VERBS: Record<string, (count: number) => string> = {
  read_file: (n) => `read ${some(n, "file")}`,
  write_file: (n) => `wrote ${some(n, "file")}`,
  edit_files: (n) => `edited ${some(n, "file")}`,
  execute: (n) => `ran ${some(n, "command")}`,
  process_output: (n) => `checked ${some(n, "process", "processes")}`,
  process_list: () => "listed processes",
  process_signal: (n) => `stopped ${some(n, "process", "processes")}`,
  list_templates: () => "looked for templates",
  read_template: (n) => `read ${some(n, "template")}`,
  read_skill: (n) => `read ${some(n, "skill")}`,
  read_skill_file: (n) => `read ${some(n, "skill file")}`,
  find_tools: () => "searched for tools",
};

/** "Read 8 files, edited 2 files, ran 3 commands". */
export function summaryOf(calls: readonly ToolView[]): string {
  const counts = new Map<string, number>();
  let others = 0;
  for (const call of calls) {
    if (!Object.hasOwn(VERBS, call.name)) {
      others += 1;
      continue;
    }
    const edited = list(fields(call.args).files).length;
    counts.set(call.name, (counts.get(call.name) ?? 0) + (call.name === "edit_files" ? Math.max(1, edited) : 1));
  }
  const said = [...counts].map(([name, count]) => VERBS[name]?.(count) ?? "");
  if (others > 0) said.push(`used ${some(others, "tool")}`);
  return capital(said.join(", "));
}

/** From the first call's start to the last one's end. */
export function groupTook(calls: readonly ToolView[]): number | null {
  const starts = calls.flatMap((call) => (call.startedAt ? [Date.parse(call.startedAt)] : []));
  const ends = calls.flatMap((call) => (call.endedAt ? [Date.parse(call.endedAt)] : []));
  if (starts.length === 0 || ends.length === 0) return null;
  const ms = Math.max(...ends) - Math.min(...starts);
  return ms >= 0 ? ms : null;
}
