// Written by web/scripts/api_types.py from docs/api/openapi.json (`make docs`). Do not edit.

/** An administrator read a chat with a reason, or reset the password of its owner. `user` is the administrator; it is null if the account is deleted, and for a command on the server's machine. `chat_id` and `reason` are null for a reset. */
export interface Access {
  at: string;
  kind: AccessKind;
  user: PublicUser | null;
  chat_id: string | null;
  reason: string | null;
}

export type AccessKind = "password_reset" | "read";

/** The accesses since the user last dismissed a notice. Send `through` to dismiss this one. For 30 days after a password reset, a notice is dismissed only for the session or token that dismisses it. */
export interface AccessNotice {
  reads: number;
  password_resets: number;
  last_at: string;
  through: number;
}

/** A page of accesses, newest first. */
export interface AccessPage {
  items: Access[];
  next_cursor: string | null;
}

/** The tool calls that a chat waits for: for results of its client ("tools"), or for a user's approval ("approval"). If there is no deadline, the chat waits until it is answered. */
export interface Action {
  kind: "approval" | "tools";
  tool_calls: ActionCall[];
  deadline_at: string | null;
}

/** A tool call that a chat waits for. `args` are exactly as the model wrote them. `always` describes the rule that the answer "always" would create: a glob for each path of the arguments. `brake` is set if the call is on hold because it repeats without a new result: sentences that say what happened and what the user can do. `elicitation` is set if the server of the tool asks the user something before it completes the call. Such calls have no `always`. */
export interface ActionCall {
  tool_call_id: string;
  tool_name: string;
  args: unknown;
  always?: Offers;
  brake?: string;
  elicitation?: Elicitation;
}

/** The calls that the chat waits for. `kind` is "tools" if the client has to submit results, or "approval" if a user has to approve the calls. */
export interface ActionRequired {
  type: "action_required";
  kind: "approval" | "tools";
  tool_calls: ActionCall[];
  deadline_at: string | null;
}

/** The access of administrators to other users' chats: none, with a reason that the owner sees, or unrestricted. */
export type AdminAccess = "break_glass" | "full" | "none";

/** Any of the keys; absent keys keep their values. */
export interface AdvisorSettingsChange {
  enabled?: boolean;
  max_uses_per_run?: number;
  max_output_tokens?: number;
  model_config_id?: string | null;
  reasoning_effort?: Effort | null;
}

/** The advisor, which agents ask for a second opinion. Without a model, the chat's own model answers. `max_uses_per_run` counts since the user's last message. The effort needs a model. */
export interface AdvisorSettingsValues {
  enabled?: boolean;
  max_uses_per_run?: number;
  max_output_tokens?: number;
  model_config_id?: string | null;
  reasoning_effort?: Effort | null;
}

/** The number of chats that would be archived, and of archived chats that would be deleted. A number of 1,000 means 1,000 or more. */
export interface AffectedView {
  auto_archive: number;
  retention: number;
}

/** The subagents of a chat, the most recently updated first. */
export interface AgentList {
  agents: AgentView[];
}

/** The end of a subagent's turn, for its parent and the user. `outcome` is a value of `AgentOutcome`. `report` is the beginning of the subagent's report; `report_bytes` is the size of the whole report. */
export interface AgentNotice {
  type: "agent-notice";
  chat_id: string;
  title: string;
  kind: string;
  outcome: string;
  report?: string;
  report_bytes?: number;
  error?: string | null;
}

/** A subagent as users see it. `phase` is the activity of a running subagent: `model`, `tool`, `approval` (it waits for a user) or `queued` (it waits for a slot). `silent_seconds` is the time since its last progress; after a long time it is `stalled`. `activity` is its last line of text or its last tool call. `outcome` is the outcome of its last turn: `finished`, `error`, `interrupted` or `deadline`. `tool_call_id` is the call of the parent that started it. `budget_micros` is null if it has no budget of its own. */
export interface AgentView {
  chat_id: string;
  parent_chat_id: string;
  tool_call_id: string;
  title: string;
  kind: string;
  kind_source: string;
  status: string;
  phase: string | null;
  stalled: boolean;
  silent_seconds: number | null;
  activity: string;
  outcome: string | null;
  model_config_id: string;
  reasoning_effort: string | null;
  created_at: string;
  updated_at: string;
  running_since: string | null;
  deadline_at: string | null;
  steps: number;
  tokens: number;
  cost_micros: number;
  unpriced_request_count: number;
  budget_micros: number | null;
}

/** The answer to one question. `always` turns an approval into a rule: for this chat and its subagents, or for all chats of the user. `match` selects the calls that the rule covers; without it, the rule covers the calls that the question offered. `parameters` are values for a call of `create_workspace`: those of the template's parameters that the agent left out or that the user changed. They are stored with the workspace only, and secrets are encrypted there. `responses` are the values for the questions of an MCP server (`elicitation` of the call): for each question that is a form, its id and the values of its fields. An address needs no values: approve after it was opened. */
export interface AnswerInput {
  tool_call_id: string;
  decision: Decision;
  reason?: string;
  always?: rookeryOf_domain__chat__approvals__Scope | null;
  match?: Record<string, string> | null;
  parameters?: Record<string, unknown> | null;
  responses?: Record<string, Record<string, unknown>> | null;
}

/** The answers to all open questions of the chat. */
export interface AnswersBody {
  answers: AnswerInput[];
}

/** Any of the keys; absent keys keep their values. */
export interface ApprovalSettingsChange {
  default?: Default;
  rules?: RuleBody[];
  allow_always?: boolean;
  timeout_seconds?: number;
}

/** The group `approvals`: rules for tool calls. With a timeout of 0 seconds, questions have no deadline. Without `allow_always`, earlier answers do not count, and users are asked each time. */
export interface ApprovalSettingsValues {
  default?: Default;
  rules?: Rule[];
  allow_always?: boolean;
  timeout_seconds?: number;
}

export type Asset = "docs.js" | "docs.css";

export type AttemptStatus = "aborted" | "completed" | "failed";

/** One HTTP exchange. `error` is a text, `unexpected_eof`, or the reason for which this server ended the exchange. `retry_kind` and `retry_delay_ms` are set if the call was tried again after it. */
export interface AttemptSummaryView {
  number: number;
  status: AttemptStatus;
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
  finished_at: string;
  request_bytes: number | null;
  response_bytes: number | null;
}

export interface AttemptView {
  number: number;
  status: AttemptStatus;
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
  finished_at: string;
  request_bytes: number | null;
  response_bytes: number | null;
  request_headers: Record<string, string>;
  request_body: BodyView | null;
  response_headers: Record<string, string>;
  response_body: BodyView | null;
}

/** Any of the keys; absent keys keep their values. */
export interface AuditSettingsChange {
  retention_days?: number;
}

/** The retention of the audit log. With 0 days, entries are kept forever. */
export interface AuditSettingsValues {
  retention_days?: number;
}

export type AuthType = "api_key" | "custom_headers" | "none" | "oauth2";

/** Whether new chats use a server: always, unless the user switches it off, or only if the user switches it on. */
export type Availability = "default_off" | "default_on" | "force_on";

/** A body without secrets. `size` is its true size in bytes. `truncated`: text was left out. */
export interface BodyView {
  text: string;
  encoding: string;
  size: number;
  truncated: boolean;
}

/** The handling of a message that is sent to a busy chat. */
export type BusyBehavior = "queue" | "steer" | "interrupt";

/** The result of a diagnosis. `broke_at` is the index of the first message that differs from the previous step; None if no message differs. `uncached_tokens` were part of the previous step and were sent again without the cache; in a first step, these are all tokens that did not come from the cache. `cost_micros` is their price. */
export interface CacheDiagnosis {
  reason: CacheReason;
  broke_at?: number | null;
  uncached_tokens?: number;
  cost_micros?: number | null;
}

/** The reason why the cache did not serve tokens of the previous step; `none` if it served all of them. */
export type CacheReason = "expired" | "first_step" | "messages_changed" | "model_changed" | "none" | "tools_changed" | "unknown";

/** A well-known server. `needs`: what an administrator must enter or prepare besides the address, else empty. */
export interface CatalogEntry {
  slug: string;
  name: string;
  description: string;
  url: string;
  auth_type: AuthType;
  api_key_header?: string | null;
  needs?: string;
}

export interface ChatChanged {
  type: "chat";
  kinds: string[];
  chat: ChatView;
  tool_calls?: ActionCall[];
}

/** The error that stopped a chat. */
export interface ChatErrorView {
  message?: string;
  detail?: string | null;
  kind?: string | null;
  provider?: string | null;
  retryable?: boolean;
  status_code?: number | null;
}

export interface ChatFile {
  id: string;
  name: string;
  mime_type: string;
  size_bytes: number;
  created_at: string;
}

/** A folder. `chats` is the number of its root chats that are not archived. */
export interface ChatFolder {
  id: string;
  name: string;
  color: FolderColor;
  created_at: string;
  chats: number;
}

export interface ChatGone {
  type: "chat_gone";
  chat_id: string;
  kind: string;
}

/** A page of a list. `next_cursor` is None on the last page. */
export interface ChatListPage {
  items: ChatView[];
  next_cursor: string | null;
}

/** Any of the keys; absent keys keep their values. */
export interface ChatSettingsChange {
  retention_days?: number;
  auto_archive_days?: number;
  admin_access?: AdminAccess;
  running_roots?: number;
  running_subagents?: number;
  dynamic_tool_timeout_seconds?: number;
  max_file_mib_per_user?: number;
  repeat_notice_after?: number;
  repeat_ask_after?: number;
}

/** Limits of chats. 0 days mean never, and 0 for a pool or for files means no limit. `retention_days` are counted from the archiving of a chat. After `repeat_notice_after` equal calls with equal results, the model gets a notice; call number `repeat_ask_after` waits for the user. 0 switches them off. Smaller numbers than those of `brake` count as those. */
export interface ChatSettingsValues {
  retention_days?: number;
  auto_archive_days?: number;
  admin_access?: AdminAccess;
  running_roots?: number;
  running_subagents?: number;
  dynamic_tool_timeout_seconds?: number;
  max_file_mib_per_user?: number;
  repeat_notice_after?: number;
  repeat_ask_after?: number;
}

/** The fields of a chat by which clients order responses and events. */
export interface ChatState {
  status: string;
  snapshot_version: number;
  history_version: number;
  queue_len: number;
}

/** A chat as one user sees it: `my_role`, `pin_order`, `folder_id` and `has_unread` are those of this user. `folder_id` is the folder of the root chat. Only the owner sees it. If the user may see the chat in lists but may not read it, the view has no title, labels, summaries, error, context and git state. `context` is null until the workspace of the chat has reported its context. `git` is the last known state of the repository with the most changes; it is null until the chat has worked in a repository. Events never have `children`: each child chat has events of its own. */
export interface ChatView {
  id: string;
  owner: PublicUser;
  my_role: string;
  parent_chat_id: string | null;
  root_chat_id: string;
  mode: string | null;
  title: string;
  status: string;
  archived: boolean;
  archived_at: string | null;
  plan_mode: boolean;
  permission_mode: string;
  last_error: ChatErrorView | null;
  last_model_config_id: string;
  last_reasoning_effort: string | null;
  workspace_id: string | null;
  mcp_server_ids: string[];
  labels: Record<string, string>;
  pin_order: number | null;
  folder_id: string | null;
  client_type: string;
  last_turn_summary: string | null;
  summary: string | null;
  has_unread: boolean;
  shared: boolean;
  queue_len: number;
  requires_action_deadline_at: string | null;
  needs_user: string | null;
  usage: ContextUsage;
  created_at: string;
  updated_at: string;
  last_activity_at: string;
  snapshot_version: number;
  history_version: number;
  meta_version: number;
  context?: ContextState | null;
  git?: DiffStatus | null;
  children?: ChatView[];
  match?: SearchMatch | null;
  files?: ChatFile[];
  dynamic_tools?: string[];
  queued_for_capacity?: boolean;
  warnings?: string[];
  action?: Action | null;
}

/** The metadata of this deployment as a client of authorization servers. */
export interface ClientDocument {
  client_id: string;
  client_name: string;
  redirect_uris: string[];
  grant_types: string[];
  response_types: string[];
  application_type: string;
  token_endpoint_auth_method: string;
}

export interface ComparedRunView {
  run: RunView;
  figures: RunFigures;
}

export interface ComparedStepView {
  id: string;
  status: StepStatus;
  model: string | null;
  message_count: number;
  usage: NormalizedUsage | null;
  cost_micros: number | null;
  ttft_ms: number | null;
  duration_ms: number | null;
}

/** Two runs, their steps in pairs, and the first differences of their prompts. Messages are compared as they are recorded, without the ids of tool calls. */
export interface ComparisonView {
  one: ComparedRunView;
  other: ComparedRunView;
  steps: StepPair[];
  message: MessageDifference | null;
  tools: ToolDifference | null;
}

/** An instruction file of a workspace context, without its text. */
export interface ContextFile {
  path: string;
  size?: number;
  hash?: string;
  truncated?: boolean;
}

/** An item of the context that the model gets. `tools` are the names of an MCP server's tools. `status` is one of `ok`, `truncated`, `oversize`, `unreadable`, `invalid`, `excluded`, or, for an MCP server that has not run yet, `pending`. */
export interface ContextItemView {
  kind: string;
  source: string;
  name: string | null;
  description: string | null;
  size: number;
  status: string;
  error: string | null;
  tools: string[] | null;
}

/** The state of a chat's captured context. `dirty`: the context of the workspace has changed since the capture. `servers` is a counter. It grows whenever the MCP servers of the workspace change, or one begins to wait for the owner's decision. */
export interface ContextState {
  dirty: boolean;
  dirty_since: string | null;
  error: string | null;
  servers?: number;
}

/** The tokens in the model's context at the newest answer, and their limit. */
export interface ContextUsage {
  context_tokens?: number | null;
  context_limit?: number | null;
}

/** The captured context. `dirty_since` is the time since which the context of the workspace differs from it. */
export interface ContextView {
  pinned: boolean;
  workspace_id: string | null;
  dirty_since: string | null;
  error: string | null;
  items: ContextItemView[];
}

/** The cost of a chat with its subagents. The keys of `by_model` are the provider's model ids, those of `by_chat` chat ids. The keys of `by_purpose` are `turn`, `compaction`, `advisor`, `title`, `label`, `summary` and `replay`. */
export interface CostView {
  total_cost_micros: number;
  request_count: number;
  unpriced_request_count: number;
  tokens: TokensView;
  runtime_ms: number;
  by_model: Record<string, FiguresView>;
  by_chat: Record<string, FiguresView>;
  by_purpose: Record<string, FiguresView>;
}

/** A new chat with its first message. */
export interface CreateBody {
  content: (TextInput | FileInput | FileReferenceInput)[];
  model_config_id?: string | null;
  reasoning_effort?: Effort | null;
  workspace_id?: string | null;
  system_prompt?: string | null;
  labels?: Record<string, string>;
  mcp_server_ids?: string[] | null;
  plan_mode?: boolean;
  permission_mode?: PermissionMode;
  dynamic_tools?: DynamicTool[];
  client_type?: "ui" | "api" | "cli";
  generate_summaries?: boolean | null;
  title?: string | null;
}

/** A new workspace. Without a name, the workspace gets one from the server, such as `amber-otter`. */
export interface CreateWorkspaceBody {
  template: string;
  name?: string | null;
  preset?: string | null;
  parameters?: Record<string, unknown>;
}

/** The recording mode of a family: by the owner's preference, always, or never. */
export type DebugMode = "inherit" | "off" | "on";

/** Any of the keys; absent keys keep their values. */
export interface DebugSettingsChange {
  allow_users?: boolean;
  retention_days?: number;
  record_on_error?: boolean;
}

/** Debug records. With `allow_users`, owners may switch recording on, for all or single chats. With `record_on_error`, a turn that is not recorded is kept in memory and stored if it ends with an error. With 0 days, records are kept until their chat is archived or deleted. */
export interface DebugSettingsValues {
  allow_users?: boolean;
  retention_days?: number;
  record_on_error?: boolean;
  forced?: boolean;
}

export interface DebugUpdate {
  type: "debug_update";
  kind: string;
  run_id: string | null;
}

/** A user's answer to a question. */
export type Decision = "approve" | "deny";

/** The effect on calls that no rule matches. */
export type Default = "allow" | "ask";

/** The administrators' models for subagents. Without one, a subagent has the model of its parent. */
export interface DeploymentOverridesView {
  general: ModelOverride | null;
  explore: ModelOverride | null;
}

/** The last known state of a repository. */
export interface DiffStatus {
  root: string;
  branch: string | null;
  remote_origin: string | null;
  additions: number;
  deletions: number;
  changed_files: number;
  refreshed_at: string;
}

/** A repository that the chat worked in. `diff` is null if the workspace could not be read. */
export interface DiffView {
  root: string;
  branch: string | null;
  remote_origin: string | null;
  additions: number;
  deletions: number;
  changed_files: number;
  refreshed_at: string;
  diff: string | null;
}

/** A signed link. `url` is the path with its signature. It is valid only with the cookie of this session, until it expires. */
export interface DownloadLink {
  path: string;
  url: string;
  expires_at: string;
}

/** A download address. `url` returns the file to any client that has the address, until it expires. */
export interface DownloadView {
  url: string;
  expires_at: string;
  sha256: string;
  size_bytes: number;
  name: string;
  mime_type: string;
}

/** A tool that the client executes. */
export interface DynamicTool {
  name: string;
  description: string;
  input_schema: Record<string, unknown>;
}

/** A new text for a message of the prompt, which is named by its index. */
export interface Edit {
  message: number;
  text: string;
}

/** The new content of the message. */
export interface EditBody {
  content: (TextInput | FileInput | FileReferenceInput)[];
  model_config_id?: string | null;
  reasoning_effort?: Effort | null;
}

export interface EditView {
  message: MessageView;
  messages: MessageView[];
  deleted_message_ids: number[];
  deleted_queued_ids: number[];
  chat: ChatState;
}

/** Reasoning effort, from least to most. */
export type Effort = "high" | "low" | "max" | "medium" | "minimal" | "none" | "xhigh";

/** The questions that a call waits for. `server` is the name of the server that asks. */
export interface Elicitation {
  server: string;
  questions?: ServerQuestion[];
}

/** A row of the log. `diff` has the old and new value of each field, or `CHANGED`. */
export interface Entry {
  id: number;
  at: string;
  actor_id: string | null;
  actor_kind: string;
  actor_label: string;
  ip: string | null;
  user_agent: string | null;
  request_id: string | null;
  action: string;
  resource_type: string;
  resource_id: string | null;
  outcome: Outcome;
  diff: Record<string, unknown>;
  extra: Record<string, unknown>;
}

/** The body of every error response. Some codes add fields. */
export interface ErrorBody {
  code: string;
  message: string;
  request_id: string;
  detail?: string | null;
  fields?: FieldError[];
  status?: string | null;
  max?: number | null;
  spent_micros?: number | null;
  limit_micros?: number | null;
  resets_at?: string | null;
  quota?: Quota | null;
  operation_id?: string | null;
}

export interface ErrorShown {
  type: "error";
  error: ChatErrorView;
}

/** The records of a chat or of one run. A request has only its new messages: its first messages and its tools may be those of an earlier step. Only the most recent runs are exported; `is_complete` is false if some of them did not fit into the file. */
export interface ExportView {
  version: 1;
  scope: "chat" | "run";
  exported_at: string;
  chat_id: string;
  limited_to_most_recent: number;
  runs: ExportedRunView[];
  run_count: number;
  is_complete: boolean;
}

export interface ExportedRunView {
  id: string;
  chat_id: string;
  parent_run_id: string | null;
  root_chat_id: string;
  parent_chat_id: string | null;
  kind: RunKind;
  status: RunStatus;
  provider: string | null;
  model: string | null;
  model_config_id: string | null;
  trigger_message_id: number | null;
  history_tip_message_id: number | null;
  summary: RunSummary;
  started_at: string;
  updated_at: string;
  finished_at: string | null;
  steps: ExportedStepView[];
}

export interface ExportedStepView {
  id: string;
  number: number;
  operation: "generate" | "stream";
  status: StepStatus;
  provider: string | null;
  model: string | null;
  model_config_id: string | null;
  history_tip_message_id: number | null;
  assistant_message_id: number | null;
  message_count: number;
  shared_messages: number;
  tool_count: number;
  usage: NormalizedUsage | null;
  cost_micros: number | null;
  finish_reason: string | null;
  error: NormalizedError | null;
  metadata: StepMetadata;
  cache: CacheDiagnosis | null;
  ttft_ms: number | null;
  started_at: string;
  finished_at: string | null;
  attempts: AttemptSummaryView[];
  request: SharedRequestView;
  response: NormalizedResponse | null;
  exchanges: AttemptView[];
}

/** One error in a request: the field and the rule that it breaks. */
export interface FieldError {
  field: string;
  message: string;
}

/** `choice` is one of the options, and `choices` are several of them. */
export type FieldKind = "boolean" | "choice" | "choices" | "integer" | "number" | "text";

/** Sums over model calls. Calls without a known price are counted, but not included in the cost. */
export interface FiguresView {
  cost_micros: number;
  request_count: number;
  unpriced_request_count: number;
  tokens: TokensView;
  runtime_ms: number;
}

/** A file. `data` is base64; a stored file has a `file_id` instead. Clients need not send the `media_type` of a stored file. The server sets it (`submitted_content.with_facts`). */
export interface File {
  type: "file";
  media_type?: string;
  name?: string | null;
  file_id?: string | null;
  data?: string | null;
  provider_meta?: Record<string, unknown> | null;
}

/** An uploaded file. */
export interface FileInput {
  type: "file";
  file_id: string;
}

/** A quoted piece of a file. */
export interface FileReference {
  type: "file-reference";
  file_name: string;
  start_line: number;
  end_line: number;
  content: string;
}

/** A quoted snippet, not an uploaded file. */
export interface FileReferenceInput {
  type: "file-reference";
  file_name: string;
  start_line: number;
  end_line: number;
  content: string;
}

export interface FileView {
  id: string;
  name: string;
  mime_type: string;
  size_bytes: number;
  sha256: string;
  created_at: string;
}

/** Absent fields keep their values. */
export interface FolderChange {
  name?: string;
  color?: FolderColor;
}

export type FolderColor = "blue" | "gray" | "green" | "purple" | "red" | "yellow";

export interface FolderCreate {
  name: string;
  color?: FolderColor;
}

export interface FolderEntryView {
  name: string;
  is_dir: boolean;
  size: number;
}

/** A folder of the workspace, subfolders first. `path` is as requested. `truncated`: the folder has more entries. */
export interface FolderView {
  path: string;
  entries: FolderEntryView[];
  truncated: boolean;
}

/** A field of a form. `minimum` and `maximum` limit a number, the length of a text, or the number of choices. `format` of a text is `email`, `uri`, `date` or `date-time`. */
export interface FormField {
  name: string;
  kind: FieldKind;
  title?: string;
  description?: string;
  required?: boolean;
  options?: FormOption[];
  default?: string | boolean | number | string[] | null;
  minimum?: number | null;
  maximum?: number | null;
  format?: string;
}

export interface FormOption {
  value: string;
  title?: string;
}

/** The format of a report. */
export type Format = "json" | "csv";

/** Repositories that changed since the last event. The first event has all of them. */
export interface GitChanges {
  type: "changes";
  repositories: RepositoryState[];
}

export interface Goodbye {
  type: "goodbye";
  retry_after_ms: number;
}

export type GroupBy = "chat" | "day" | "model" | "provider" | "purpose" | "user";

/** A group with its defaults. `pinned` are keys that the operator has set in the server's environment; they cannot be changed. */
export interface GroupViewOfAdvisorSettingsValues {
  values: AdvisorSettingsValues;
  pinned: string[];
  updated_at: string | null;
}

/** A group with its defaults. `pinned` are keys that the operator has set in the server's environment; they cannot be changed. */
export interface GroupViewOfApprovalSettingsValues {
  values: ApprovalSettingsValues;
  pinned: string[];
  updated_at: string | null;
}

/** A group with its defaults. `pinned` are keys that the operator has set in the server's environment; they cannot be changed. */
export interface GroupViewOfAuditSettingsValues {
  values: AuditSettingsValues;
  pinned: string[];
  updated_at: string | null;
}

/** A group with its defaults. `pinned` are keys that the operator has set in the server's environment; they cannot be changed. */
export interface GroupViewOfChatSettingsValues {
  values: ChatSettingsValues;
  pinned: string[];
  updated_at: string | null;
}

/** A group with its defaults. `pinned` are keys that the operator has set in the server's environment; they cannot be changed. */
export interface GroupViewOfDebugSettingsValues {
  values: DebugSettingsValues;
  pinned: string[];
  updated_at: string | null;
}

/** A group with its defaults. `pinned` are keys that the operator has set in the server's environment; they cannot be changed. */
export interface GroupViewOfMcpSettingsValues {
  values: McpSettingsValues;
  pinned: string[];
  updated_at: string | null;
}

/** A group with its defaults. `pinned` are keys that the operator has set in the server's environment; they cannot be changed. */
export interface GroupViewOfModelSettingsValues {
  values: ModelSettingsValues;
  pinned: string[];
  updated_at: string | null;
}

/** A group with its defaults. `pinned` are keys that the operator has set in the server's environment; they cannot be changed. */
export interface GroupViewOfPromptSettingsValues {
  values: PromptSettingsValues;
  pinned: string[];
  updated_at: string | null;
}

/** A group with its defaults. `pinned` are keys that the operator has set in the server's environment; they cannot be changed. */
export interface GroupViewOfSharingSettingsValues {
  values: SharingSettingsValues;
  pinned: string[];
  updated_at: string | null;
}

/** A group with its defaults. `pinned` are keys that the operator has set in the server's environment; they cannot be changed. */
export interface GroupViewOfSpendSettingsValues {
  values: SpendSettingsValues;
  pinned: string[];
  updated_at: string | null;
}

/** A group with its defaults. `pinned` are keys that the operator has set in the server's environment; they cannot be changed. */
export interface GroupViewOfSubagentSettingsValues {
  values: SubagentSettingsValues;
  pinned: string[];
  updated_at: string | null;
}

/** A group with its defaults. `pinned` are keys that the operator has set in the server's environment; they cannot be changed. */
export interface GroupViewOfWorkspaceSettingsValues {
  values: WorkspaceSettingsValues;
  pinned: string[];
  updated_at: string | null;
}

export interface GroupsView {
  prompts?: GroupViewOfPromptSettingsValues;
  models?: GroupViewOfModelSettingsValues;
  chats?: GroupViewOfChatSettingsValues;
  subagents?: GroupViewOfSubagentSettingsValues;
  advisor?: GroupViewOfAdvisorSettingsValues;
  approvals?: GroupViewOfApprovalSettingsValues;
  sharing?: GroupViewOfSharingSettingsValues;
  spend?: GroupViewOfSpendSettingsValues;
  workspaces?: GroupViewOfWorkspaceSettingsValues;
  mcp?: GroupViewOfMcpSettingsValues;
  audit?: GroupViewOfAuditSettingsValues;
  debug?: GroupViewOfDebugSettingsValues;
}

/** A header that is sent to the server. Its value is not shown. */
export interface HeaderView {
  name: string;
  has_value: boolean;
}

export interface Heartbeat {
  type: "heartbeat";
  server_time: string;
}

export interface Hello {
  type: "hello";
  chat_id: string;
  replica_id: string;
  server_time: string;
  resume: string;
  protocol?: number;
}

/** The client's messages are outdated; the messages that follow, up to `synced`, replace them. */
export interface HistoryReset {
  type: "history_reset";
  count: number;
  has_more: boolean;
  first_message_id: number | null;
}

/** Context that a hook adds, for the model only. */
export interface HookContext {
  type: "hook-context";
  text: string;
}

/** A notice that a hook adds, for users only. */
export interface HookNotice {
  type: "hook-notice";
  text: string;
}

/** The options of an interrupt. With `cascade`, the default, the chat's subagents are stopped as well. */
export interface InterruptBody {
  cascade?: boolean;
}

/** A list without pages. */
export interface ItemsOfCatalogEntry {
  items: CatalogEntry[];
}

/** A list without pages. */
export interface ItemsOfChatFolder {
  items: ChatFolder[];
}

/** A list without pages. */
export interface ItemsOfDiffView {
  items: DiffView[];
}

/** A list without pages. */
export interface ItemsOfDownloadLink {
  items: DownloadLink[];
}

/** A list without pages. */
export interface ItemsOfJobView {
  items: JobView[];
}

/** A list without pages. */
export interface ItemsOfMcpServerView {
  items: McpServerView[];
}

/** A list without pages. */
export interface ItemsOfModelConfigView {
  items: ModelConfigView[];
}

/** A list without pages. */
export interface ItemsOfPrompt {
  items: Prompt[];
}

/** A list without pages. */
export interface ItemsOfProviderKeyView {
  items: ProviderKeyView[];
}

/** A list without pages. */
export interface ItemsOfProviderView {
  items: ProviderView[];
}

/** A list without pages. */
export interface ItemsOfPublicUser {
  items: PublicUser[];
}

/** A list without pages. */
export interface ItemsOfReplicaView {
  items: ReplicaView[];
}

/** A list without pages. */
export interface ItemsOfSearchMatch {
  items: SearchMatch[];
}

/** A list without pages. */
export interface ItemsOfSessionView {
  items: SessionView[];
}

/** A list without pages. */
export interface ItemsOfShareView {
  items: ShareView[];
}

/** A list without pages. */
export interface ItemsOfTemplateView {
  items: TemplateView[];
}

/** A list without pages. */
export interface ItemsOfTokenView {
  items: TokenView[];
}

/** A list without pages. */
export interface ItemsOfUpstreamModel {
  items: UpstreamModel[];
}

/** A list without pages. */
export interface ItemsOfWorkspaceMcpServerView {
  items: WorkspaceMcpServerView[];
}

export type JobOutcome = "done" | "failed";

/** A run of a job. `removed` rows were deleted; `skipped` rows could not be deleted. `error` is null unless the run failed. */
export interface JobRunView {
  replica_id: string;
  started_at: string;
  finished_at: string;
  outcome: JobOutcome;
  removed: number;
  skipped: number;
  error: string | null;
}

/** A housekeeping job and its last runs on any replica, newest first. */
export interface JobView {
  name: string;
  runs: JobRunView[];
}

/** A kind of subagent. Without `tools`, it has all tools of subagents. */
export interface KindBody {
  description: string;
  prompt?: string;
  model_config_id?: string | null;
  reasoning_effort?: Effort | null;
  tools?: string[] | null;
  read_only?: boolean;
  max_minutes?: number | null;
}

/** A kind of subagent. `source` is `builtin`, `deployment` or `user`. If another kind with the same name replaces this one, `hidden_by` is the source of the other kind. Workspaces may define more kinds, which only their own chats can use. */
export interface KindView {
  name: string;
  source: string;
  description: string;
  prompt: string;
  model_config_id: string | null;
  reasoning_effort: Effort | null;
  tools: string[] | null;
  read_only: boolean;
  max_minutes: number | null;
  updated_at: string | null;
  hidden_by: string | null;
}

export interface KindsView {
  kinds: KindView[];
}

/** The token of a one-time link: the part of the link after the #. */
export interface LinkBody {
  token: string;
  password: string;
}

export type LinkKind = "invite" | "reset";

/** The user whose password a one-time link sets, and the time at which the link expires. */
export interface LinkView {
  kind: LinkKind;
  username: string;
  name: string;
  email: string | null;
  expires_at: string;
}

export interface ListResync {
  type: "resync";
}

/** The credentials of a login. `login` is an email address or a username. `stay_signed_in` keeps the cookie when the browser is closed (the default). */
export interface LoginBody {
  login: string;
  password: string;
  stay_signed_in?: boolean;
}

/** The state of a user's login. `expired`: the user must log in again. `insufficient`: the login lacks scopes. */
export type LoginState = "connected" | "expired" | "insufficient" | "none";

/** The logged-in user. Later requests send the cookie of this response and the `session_key`. */
export interface LoginView {
  id: string;
  username: string;
  name: string;
  email: string | null;
  role: UserRole;
  status: Status;
  spend_limit_micros: number | null;
  created_at: string;
  last_seen_at: string | null;
  session_key: string;
}

/** The decision whether the server may run with exactly this entry from now on. */
export interface McpAnswerBody {
  decision: McpDecision;
}

/** The address at which the user logs in and agrees. It is valid until `expires_at`, in this browser only. */
export interface McpConnectView {
  authorization_url: string;
  expires_at: string;
}

export type McpDecision = "agree" | "deny";

/** The result of a disconnection. `revoked` is null without support for revocation, or without a login. */
export interface McpDisconnectView {
  revoked: boolean | null;
  error: string | null;
}

/** The caller's login at a server. `reason` is the reason why a login has expired. `missing_scopes` are permissions that the server has requested since the login; connecting again asks the user for them. */
export interface McpLoginView {
  state: LoginState;
  scopes?: string[];
  missing_scopes?: string[];
  reason?: string | null;
  connected_at?: string | null;
}

/** Changes of an MCP server. Absent fields keep their values, and null clears one. `headers` are replaced as a whole; `***` keeps a stored value. A new authentication type removes the other types' secrets. A new host needs its secrets again. Both end all logins at the server. */
export interface McpServerChange {
  slug?: string;
  url?: string;
  display_name?: string;
  description?: string;
  icon?: string;
  transport?: Transport;
  enabled?: boolean;
  availability?: Availability;
  auth_type?: AuthType;
  api_key_header?: string | null;
  api_key?: string | null;
  headers?: Record<string, string>;
  oauth_client_id?: string | null;
  oauth_client_secret?: string | null;
  oauth_authorization_url?: string | null;
  oauth_token_url?: string | null;
  oauth_revocation_url?: string | null;
  oauth_scopes?: string[];
  allow_in_plan_mode?: boolean;
  model_intent?: boolean;
  forward_identity?: boolean;
  tool_allow_list?: string[];
  tool_deny_list?: string[];
  allowed_users?: string[];
  allowed_roles?: UserRole[];
  call_timeout_seconds?: number;
}

/** A new MCP server. Its secrets are sealed and never shown again. `api_key` and `api_key_header` belong to the authentication type `api_key`, `headers` to `custom_headers`, and the fields that begin with `oauth_` to `oauth2`. Without `oauth_client_id`, Rookery finds the addresses of the login and registers itself as a client. */
export interface McpServerCreate {
  slug: string;
  url: string;
  display_name?: string;
  description?: string;
  icon?: string;
  transport?: Transport;
  enabled?: boolean;
  availability?: Availability;
  auth_type?: AuthType;
  api_key_header?: string | null;
  api_key?: string | null;
  headers?: Record<string, string>;
  oauth_client_id?: string | null;
  oauth_client_secret?: string | null;
  oauth_authorization_url?: string | null;
  oauth_token_url?: string | null;
  oauth_revocation_url?: string | null;
  oauth_scopes?: string[];
  allow_in_plan_mode?: boolean;
  model_intent?: boolean;
  forward_identity?: boolean;
  tool_allow_list?: string[];
  tool_deny_list?: string[];
  allowed_users?: string[];
  allowed_roles?: UserRole[];
  call_timeout_seconds?: number;
}

/** An MCP server. The fields after `login` are null unless the caller may see the configuration. `is_own`: the caller's own server, which is for the caller's chats only. `workspace_id` is set if a file of that workspace names the server: it is for the caller's chats in the workspace, and only the file can change it. */
export interface McpServerView {
  id: string;
  slug: string;
  display_name: string;
  description: string;
  icon: string;
  enabled: boolean;
  availability: Availability;
  auth_type: AuthType;
  is_own: boolean;
  workspace_id: string | null;
  is_editable: boolean;
  connected: boolean;
  login: McpLoginView;
  url?: string | null;
  transport?: Transport | null;
  api_key?: HeaderView | null;
  headers?: HeaderView[] | null;
  oauth_client_id?: string | null;
  has_oauth_client_secret?: boolean | null;
  oauth_authorization_url?: string | null;
  oauth_token_url?: string | null;
  oauth_revocation_url?: string | null;
  oauth_scopes?: string[] | null;
  allow_in_plan_mode?: boolean | null;
  model_intent?: boolean | null;
  forward_identity?: boolean | null;
  tool_allow_list?: string[] | null;
  tool_deny_list?: string[] | null;
  allowed_users?: string[] | null;
  allowed_roles?: UserRole[] | null;
  call_timeout_seconds?: number | null;
  created_at?: string | null;
  updated_at?: string | null;
}

/** Any of the keys; absent keys keep their values. */
export interface McpSettingsChange {
  allow_user_servers?: boolean;
  tool_search?: ToolSearch;
  allow_private_addresses?: boolean;
}

/** The settings of MCP servers. `tool_search`: whether tools are found by a search and not sent with every request. `auto`: if their descriptions are too long. With `allow_private_addresses`, servers in private networks are reached. */
export interface McpSettingsValues {
  allow_user_servers?: boolean;
  tool_search?: ToolSearch;
  allow_private_addresses?: boolean;
}

/** The state of consent. `changed`: the owner's answer was for another entry with this name. */
export type McpState = "agreed" | "asked" | "changed" | "denied";

/** The reason why a test failed. `needs_login`: the caller must connect first. */
export interface McpTestError {
  kind: string;
  message: string;
  needs_login: boolean;
}

/** The result of a test: the tools of the server, or the problem. */
export interface McpTestView {
  ok: boolean;
  tools: McpToolView[];
  error: McpTestError | null;
  protocol_version?: string | null;
}

/** A tool as its server describes it. `is_offered`: the allow and deny lists of the server permit it. */
export interface McpToolView {
  name: string;
  description: string;
  is_offered: boolean;
}

/** The tools of the server at the last request. `fetched_at` is null if there was no request yet. */
export interface McpToolsView {
  items: McpToolView[];
  fetched_at: string | null;
}

/** The caller's account. `permissions` are the rights of this session or token beyond the caller's own data. Each permission has the form `resource:action`. `access_notice` counts the accesses of administrators to the caller's account and chats since the last notice was dismissed; it is always null for tokens without the scope `all`. `warnings` concern the server, and only administrators get them. */
export interface Me {
  id: string;
  username: string;
  name: string;
  email: string | null;
  role: UserRole;
  status: Status;
  spend_limit_micros: number | null;
  created_at: string;
  last_seen_at: string | null;
  permissions: string[];
  access_notice: AccessNotice | null;
  warnings: Warning[];
}

export interface MessageAdded {
  type: "message";
  message: MessageView;
}

/** The first message that differs: the number of the step, and the index in its prompt. A message is null if the prompt of its run ends before it. */
export interface MessageDifference {
  number: number;
  index: number;
  one: NormalizedMessage | null;
  other: NormalizedMessage | null;
}

/** The `message_part` event of a stream: `n` adjacent parts merged into one; `seq` is the number of the last. */
export interface MessagePart {
  type: "message_part";
  seq: number;
  role: MessageRole;
  part: Text | Reasoning | ToolCall | ToolResult | Source | File | FileReference | HookContext | HookNotice | WorkspaceContext | AgentNotice | TurnEnd;
  n?: number;
}

export type MessageRole = "assistant" | "system" | "tool" | "user";

/** A message. `decode_error` is present, and true, if its content could not be read. */
export interface MessageView {
  id: number;
  chat_id: string;
  role: string;
  content: (Text | Reasoning | ToolCall | ToolResult | Source | File | FileReference | HookContext | HookNotice | WorkspaceContext | AgentNotice | TurnEnd)[];
  created_at: string;
  created_by: string | null;
  model_config_id: string | null;
  reasoning_effort: string | null;
  client_id: string | null;
  usage: UsageView | null;
  context_tokens: number | null;
  finish_reason: string | null;
  cost_micros: number | null;
  runtime_ms: number | null;
  decode_error?: boolean;
}

/** A page of messages. `queued_messages` is present without a cursor, `has_newer` in a page around a message. */
export interface MessagesView {
  items: MessageView[];
  has_more: boolean;
  snapshot_version: number;
  history_version: number;
  queued_messages?: QueuedMessageView[];
  has_newer?: boolean;
}

/** Changes of a model config. Absent fields keep their values; null clears a price. `options` are replaced as a whole; `***` keeps a stored value. */
export interface ModelConfigChange {
  provider_id?: string;
  model?: string;
  context_limit?: number;
  display_name?: string;
  enabled?: boolean;
  is_default?: boolean;
  compression_threshold?: number;
  options?: Record<string, unknown>;
  price_input?: number | string | null;
  price_output?: number | string | null;
  price_cache_read?: number | string | null;
  price_cache_write?: number | string | null;
  price_cache_write_1h?: number | string | null;
}

/** A new model config. The first config always becomes the default. A new default replaces the old one. */
export interface ModelConfigCreate {
  provider_id: string;
  model: string;
  context_limit: number;
  display_name?: string;
  enabled?: boolean;
  is_default?: boolean;
  compression_threshold?: number;
  options?: Record<string, unknown>;
  price_input?: number | string | null;
  price_output?: number | string | null;
  price_cache_read?: number | string | null;
  price_cache_write?: number | string | null;
  price_cache_write_1h?: number | string | null;
}

/** A model config. Prices are in dollars per million tokens, as strings; null if they are not set. */
export interface ModelConfigView {
  id: string;
  provider_id: string;
  model: string;
  display_name: string;
  enabled: boolean;
  is_default: boolean;
  context_limit: number;
  compression_threshold: number;
  window: WindowView;
  options: Record<string, unknown>;
  reasoning_efforts: Effort[];
  price_input: string | null;
  price_output: string | null;
  price_cache_read: string | null;
  price_cache_write: string | null;
  price_cache_write_1h: string | null;
  created_by: string | null;
  updated_by: string | null;
  created_at: string;
  updated_at: string;
}

/** A model for one purpose. Without an effort, the effort of the chat applies. */
export interface ModelOverride {
  model_config_id: string;
  reasoning_effort?: Effort | null;
}

/** Any of the keys; absent keys keep their values. */
export interface ModelSettingsChange {
  title_generation?: OverrideBody | null;
  compaction?: OverrideBody | null;
  general_subagents?: OverrideBody | null;
  explore_subagents?: OverrideBody | null;
  allow_personal_overrides?: boolean;
  generate_titles?: boolean;
}

/** The models for titles, summaries and subagents, and the choices that users may make themselves. */
export interface ModelSettingsValues {
  title_generation?: OverrideView | null;
  compaction?: OverrideView | null;
  general_subagents?: OverrideView | null;
  explore_subagents?: OverrideView | null;
  allow_personal_overrides?: boolean;
  generate_titles?: boolean;
}

/** A model. `reasoning_efforts` are its efforts, from least to most. `compression_threshold` is the percentage of the context at which chats are summarized, unless the user has set another. */
export interface ModelView {
  id: string;
  model: string;
  display_name: string;
  context_limit: number;
  reasoning_efforts: Effort[];
  is_default: boolean;
  compression_threshold: number;
}

/** The models of a provider. `unavailable_reason` is `missing_api_key` or `user_api_key_required`: the caller can add their own key. */
export interface ModelsOfProvider {
  id: string;
  type: string;
  display_name: string;
  icon: string;
  available: boolean;
  unavailable_reason: string | null;
  models: ModelView[];
}

export interface ModelsView {
  providers: ModelsOfProvider[];
}

/** The new position of a queued message: before this message, or at the end if it is null. */
export interface MoveBody {
  before: number | null;
}

/** A new token. `token` is the credential that programs send. Only this response contains it. */
export interface NewTokenView {
  id: string;
  name: string;
  scopes: Scope[];
  created_at: string;
  expires_at: string;
  last_used_at: string | null;
  token: string;
}

/** A new user. `link` is null if a password was given. */
export interface NewUser {
  id: string;
  username: string;
  name: string;
  email: string | null;
  role: UserRole;
  status: Status;
  spend_limit_micros: number | null;
  created_at: string;
  last_seen_at: string | null;
  link: OneTimeLink | null;
}

/** A new user. Without a password, a one-time link is created with which the user sets one. */
export interface NewUserBody {
  email: string;
  username?: string | null;
  name?: string;
  role?: UserRole;
  password?: string | null;
}

/** A failure. `type` is the class of the exception. `detail` is the provider's text. */
export interface NormalizedError {
  message: string;
  type: string;
  kind?: string | null;
  cancelled?: boolean;
  detail?: string | null;
  code?: string | null;
  provider_title?: string | null;
  provider_status?: number | null;
  request_id?: string | null;
  retryable?: boolean | null;
}

export interface NormalizedMessage {
  role: string;
  parts: NormalizedPart[];
}

/** A part of a message or of an answer. `text_length` and `input_length` are lengths before the text was cut. */
export interface NormalizedPart {
  type: string;
  text?: string | null;
  text_length?: number | null;
  filename?: string | null;
  media_type?: string | null;
  size?: number | null;
  tool_call_id?: string | null;
  tool_name?: string | null;
  arguments?: string | null;
  input_length?: number | null;
  result?: string | null;
  is_error?: boolean;
  provider_executed?: boolean;
  source_type?: string | null;
  title?: string | null;
  url?: string | null;
}

/** A request. `provider_option_names` are the names of the options that were set, without their values. */
export interface NormalizedRequest {
  messages: NormalizedMessage[];
  tools?: NormalizedTool[];
  options?: Record<string, number>;
  tool_choice?: string | null;
  effort?: string | null;
  schema_name?: string | null;
  structured_output?: boolean;
  provider_option_names?: string[];
}

/** An answer, complete or not. `raw_text_length` is the length of a structured answer, whose text is left out. */
export interface NormalizedResponse {
  content?: NormalizedPart[];
  finish_reason?: string | null;
  finish_detail?: string | null;
  usage?: NormalizedUsage | null;
  warnings?: NormalizedWarning[];
  response_id?: string | null;
  request_id?: string | null;
  model?: string | null;
  raw_text_length?: number | null;
}

/** A tool that was offered to the model. `type` is `function`, or `web_search` for the provider's search. */
export interface NormalizedTool {
  type: string;
  name: string;
  description?: string | null;
  id?: string | null;
  input_schema?: Record<string, unknown> | null;
}

/** Numbers of tokens, if the provider reported them. `input_tokens` excludes cached tokens. */
export interface NormalizedUsage {
  input_tokens?: number | null;
  output_tokens?: number | null;
  total_tokens?: number | null;
  reasoning_tokens?: number | null;
  cache_creation_tokens?: number | null;
  cache_creation_1h_tokens?: number | null;
  cache_read_tokens?: number | null;
  web_searches?: number | null;
}

export interface NormalizedWarning {
  type: string;
  setting: string;
  message: string;
}

/** The patterns of the rule that the answer "always" would create, for each scope. `chat` has the patterns of the rule that asked, and `user` those that match exactly this call. They are None if no pattern can express them, as for a long call; then the user has to write patterns. `tool` is the name in the rule if the tool is one of an MCP server. `program` has a pattern for all commands of the same program, such as `git push *`; absent if the call is not such a command. */
export interface Offers {
  chat?: Record<string, string> | null;
  user?: Record<string, string> | null;
  tool?: string;
  program?: Record<string, string>;
}

/** A link with which a user sets a password, once. `url` has the token after its #. */
export interface OneTimeLink {
  url: string;
  token: string;
  expires_at: string;
}

/** An operation on a workspace: `kind` is create, start, stop or delete. `state` is queued, running, succeeded, failed or canceled; `reason` is the origin of the request. */
export interface OperationView {
  id: string;
  workspace_id: string;
  kind: string;
  state: string;
  reason: string;
  error: string | null;
  error_code: string | null;
  created_at: string;
  started_at: string | null;
  finished_at: string | null;
}

export type Outcome = "done" | "refused";

export interface OverrideBody {
  model_config_id: string;
  reasoning_effort?: Effort | null;
}

export interface OverrideChange {
  mode: "chat_default" | "model";
  model_config_id?: string | null;
  reasoning_effort?: Effort | null;
}

/** A model for one purpose. `usable` is false if the model has been disabled or deleted. */
export interface OverrideView {
  model_config_id: string;
  reasoning_effort: Effort | null;
  usable: boolean;
}

export interface OverridesChange {
  root?: OverrideChange | null;
  general?: SubagentOverrideChange | null;
  explore?: SubagentOverrideChange | null;
}

/** The caller's own models: for new chats, and for subagents of the kinds `general` and `explore`. */
export interface OverridesView {
  root: PersonalOverride | null;
  general: PersonalOverride | null;
  explore: PersonalOverride | null;
}

/** One page of a list; `next_cursor` is null on the last page. */
export interface PageOfEntry {
  items: Entry[];
  next_cursor?: string | null;
}

/** One page of a list; `next_cursor` is null on the last page. */
export interface PageOfUser {
  items: User[];
  next_cursor?: string | null;
}

/** One page of a list; `next_cursor` is null on the last page. */
export interface PageOfWorkspaceView {
  items: WorkspaceView[];
  next_cursor?: string | null;
}

/** A parameter of a template's workspaces. `ephemeral` parameters are given again at every start. `suggestions` are values that a form may offer: the shared folders, if the parameter names a folder of the machine. */
export interface ParameterView {
  name: string;
  type: string;
  required: boolean;
  default: boolean | number | string | string[] | null;
  mutable: boolean;
  ephemeral: boolean;
  display_name: string;
  description: string;
  options: (boolean | number | string | string[])[];
  regex: string | null;
  min: number | null;
  max: number | null;
  suggestions: string[];
}

/** A new password. With `revoke_tokens`, all API tokens are deleted, and programs that use them need new ones. */
export interface PasswordBody {
  current_password: string;
  new_password: string;
  revoke_tokens: boolean;
}

/** The fields to change; absent fields keep their values. */
export interface PatchBody {
  title?: string;
  labels?: Record<string, string>;
  pin_order?: number;
  folder_id?: string | null;
  workspace_id?: string | null;
  plan_mode?: boolean;
  permission_mode?: PermissionMode;
  mcp_server_ids?: string[];
  model_config_id?: string;
  reasoning_effort?: Effort | null;
  archived?: boolean;
  debug_mode?: DebugMode;
}

/** A period from `start` to just before `end`. */
export interface Period {
  start: string;
  end: string;
}

export type PeriodKind = "day" | "month" | "week";

/** The modes. `ask`: every call with an effect waits for the user. `auto`: the approval rules decide. `read_only`: the model has only tools that read, and commands run in the read-only view of the workspace. */
export type PermissionMode = "ask" | "auto" | "read_only";

/** A user's own model. For new chats, `chat_default` means the default of the deployment. For subagents, `chat_default` means the model of their parent, and `deployment_default` the administrators' choice for the kind. */
export interface PersonalOverride {
  mode: "chat_default" | "deployment_default" | "model";
  model_config_id?: string | null;
  reasoning_effort?: Effort | null;
}

/** A text that contains the searched words. `before` and `after` are the text around the first of them. `message` is the index of a message of the prompt, and `role` its role. Both are None for other texts. */
export interface Place {
  step_id: string;
  number: number;
  kind: PlaceKind;
  message?: number | null;
  role?: string | null;
  before: string;
  found: string;
  after: string;
}

export type PlaceKind = "error" | "message" | "output" | "prior_error";

/** The places where a searched text was found, in order. If `is_complete` is false, there may be more. */
export interface PlacesView {
  places: Place[];
  is_complete: boolean;
}

export interface Pong {
  type: "pong";
  id: unknown;
}

/** Changes of preferences. Absent fields keep their values; null clears one. `display` is merged (RFC 7396); its limit is 16 KiB. */
export interface PreferencesChange {
  custom_prompt?: string | null;
  context_auto_refresh?: boolean | null;
  model_overrides?: OverridesChange | null;
  compaction_thresholds?: Record<string, number | null> | null;
  approval_rules?: RuleBody[] | null;
  debug?: boolean | null;
  display?: Record<string, unknown> | null;
}

/** The preferences. `model_overrides` apply only while `overrides_allowed` is true; `display` belongs to the web application. `context_auto_refresh`: each turn starts with the current context of the workspace, without a request to refresh it. `debug`: model calls of the caller's chats are recorded, unless the chat or the server decides otherwise. */
export interface PreferencesView {
  custom_prompt: string;
  context_auto_refresh: boolean;
  model_overrides: OverridesView;
  deployment_overrides: DeploymentOverridesView;
  overrides_allowed: boolean;
  compaction_thresholds: Record<string, number>;
  approval_rules: Rule[];
  debug: boolean;
  display: Record<string, unknown>;
}

export interface PresetView {
  id: string;
  name: string;
  default: boolean;
  description: string;
  parameters: Record<string, boolean | number | string | string[]>;
}

export interface PreviewReset {
  type: "preview_reset";
  history_version: number;
  generation_attempt: number;
  reason: string;
}

export interface PreviewTruncated {
  type: "preview_truncated";
}

/** A failure of an earlier try of the step. */
export interface PriorError {
  message?: string;
  kind?: string | null;
  generation_attempt?: number | null;
}

export interface ProbeError {
  kind: string;
  message: string;
}

/** The result of a test: whether the provider answered, and the time that it took. */
export interface ProbeView {
  ok: boolean;
  latency_ms: number;
  error: ProbeError | null;
}

/** The response to a promotion. `message` is null while the running turn has to stop first. */
export interface PromoteView {
  message: MessageView | null;
  messages: MessageView[];
  chat: ChatState;
}

/** A user message with its text parts, joined by line breaks. */
export interface Prompt {
  id: number;
  chat_id: string;
  text: string;
}

/** Any of the keys; absent keys keep their values. */
export interface PromptSettingsChange {
  system_prompt?: string;
  include_default?: boolean;
  plan_mode_instructions?: string;
}

/** The instructions of new chats. With `include_default`, the built-in prompt precedes the deployment's own. */
export interface PromptSettingsValues {
  system_prompt?: string;
  include_default?: boolean;
  plan_mode_instructions?: string;
  default_system_prompt?: string;
}

/** Changes of a provider. Absent fields keep their values; a null `api_key` removes the key. `options` are replaced as a whole; `***` keeps a stored value. */
export interface ProviderChange {
  name?: string;
  display_name?: string;
  icon?: string;
  base_url?: string | null;
  enabled?: boolean;
  options?: Record<string, unknown>;
  send_correlation?: boolean;
  api_key?: string | null;
  central_key_enabled?: boolean;
  allow_user_key?: boolean;
  allow_central_fallback?: boolean;
}

/** A new provider. `allow_central_fallback` defaults to true if central and user keys are both allowed. */
export interface ProviderCreate {
  type: ProviderType;
  name: string;
  display_name?: string;
  icon?: string;
  base_url?: string | null;
  enabled?: boolean;
  options?: Record<string, unknown>;
  send_correlation?: boolean;
  api_key?: string | null;
  central_key_enabled?: boolean;
  allow_user_key?: boolean;
  allow_central_fallback?: boolean;
}

export interface ProviderKeyPut {
  api_key: string;
}

/** Whether the user has a key, and whether the installation has one. */
export interface ProviderKeyView {
  provider: ProviderOfKey;
  has_user_key: boolean;
  has_central_key: boolean;
  user_key_allowed: boolean;
}

export interface ProviderOfKey {
  id: string;
  type: string;
  name: string;
  display_name: string;
  enabled: boolean;
}

/** A provider to try before it is stored. With `model`, that model gets a short message. Without it, the models are listed. With `provider_id`, a change of that provider is tried: absent fields have its values, and `***` in a header stands for the stored value. */
export interface ProviderTry {
  type: ProviderType;
  provider_id?: string | null;
  base_url?: string | null;
  options?: Record<string, unknown>;
  api_key?: string | null;
  model?: string | null;
}

export type ProviderType = "anthropic" | "openai" | "azure_openai" | "openai_compat" | "openrouter" | "google" | "bedrock" | "bridge" | "scripted";

/** A provider. `source` is `db`, or `env` for a provider from the server's environment, which is read-only. */
export interface ProviderView {
  id: string;
  type: string;
  name: string;
  display_name: string;
  icon: string;
  base_url: string | null;
  enabled: boolean;
  source: string;
  options: Record<string, unknown>;
  send_correlation: boolean;
  has_key: boolean;
  central_key_enabled: boolean;
  allow_user_key: boolean;
  allow_central_fallback: boolean;
  created_at: string;
  updated_at: string;
}

/** The fields of a user that all users may see. */
export interface PublicUser {
  id: string;
  username: string;
  name: string;
}

export interface QueueUpdate {
  type: "queue_update";
  queued_messages: QueuedMessageView[];
}

export interface QueueView {
  items: QueuedMessageView[];
  queue_version: number;
}

/** A message that waits for its turn. `steer` messages are added at the next step. */
export interface QueuedMessageView {
  id: number;
  content: (Text | Reasoning | ToolCall | ToolResult | Source | File | FileReference | HookContext | HookNotice | WorkspaceContext | AgentNotice | TurnEnd)[];
  model_config_id: string | null;
  reasoning_effort: string | null;
  client_id: string | null;
  created_at: string;
  created_by: string;
  steer: boolean;
  decode_error?: boolean;
}

/** The fields to change; absent fields keep their values. An effort of null means the model's default. */
export interface QueuedPatchBody {
  content?: (TextInput | FileInput | FileReferenceInput)[];
  model_config_id?: string;
  reasoning_effort?: Effort | null;
}

/** A limit on workspaces. `kind` is the name of its setting. */
export interface Quota {
  kind: string;
  used: number;
  limit: number;
}

/** The last message that the caller has read; null means the newest message. With `force` the cursor can also move back: 0 makes the chat unread again. */
export interface ReadBody {
  message_id?: number | null;
  force?: boolean;
}

export interface Ready {
  type: "ready";
  server_time: string;
}

export interface Reasoning {
  type: "reasoning";
  text: string;
  created_at?: string | null;
  completed_at?: string | null;
  provider_meta?: Record<string, unknown> | null;
}

/** The recording state of the chat's model calls. `mode` is that of its root chat. `is_forced`: the operator records all chats. `is_allowed`: users may switch recording on. */
export interface RecordingView {
  mode: DebugMode;
  is_on: boolean;
  is_forced: boolean;
  is_allowed: boolean;
}

/** The recorded answer and the new answer. `warnings` are sentences about differences other than the requested changes. */
export interface Replay {
  recorded: ReplayAnswer;
  replayed: ReplayAnswer;
  warnings?: string[];
}

/** One of two answers to the same request. `error` is set if the answer is not complete. */
export interface ReplayAnswer {
  model: string | null;
  provider: string | null;
  effort: string | null;
  content?: NormalizedPart[];
  finish_reason?: string | null;
  usage?: NormalizedUsage | null;
  cost_micros?: number | null;
  ttft_ms?: number | null;
  duration_ms?: number | null;
  error?: NormalizedError | null;
}

/** The changes of a replay. Without changes, the recorded call is repeated exactly. */
export interface ReplayBody {
  model_config_id?: string | null;
  effort?: Effort | null;
  edits?: Edit[];
}

export type ReplicaState = "alive" | "stale" | "stopping";

/** A replica. `owned_chats` is the number of chats that run there. `streams` is known only for the replica that answers. */
export interface ReplicaView {
  id: string;
  hostname: string;
  pid: number;
  index: number;
  version: string;
  schema_version: number;
  state: ReplicaState;
  owned_chats: number;
  streams: number | null;
  started_at: string;
  heartbeat_at: string;
  stopping_at: string | null;
}

/** A repository that a chat works in. A diff that is too long is replaced by a note. `removed`: the repository no longer exists. */
export interface RepositoryState {
  root: string;
  branch: string | null;
  remote_origin: string | null;
  diff: string;
  additions: number;
  deletions: number;
  changed_files: number;
  untracked_omitted: number;
  removed: boolean;
}

/** The current state of the workspace, and the operation to wait for; null if there was nothing to do. */
export interface RequestedView {
  workspace: WorkspaceView;
  operation: OperationView | null;
}

export interface RetryChanged {
  type: "retry";
  retry: RetryView | null;
}

/** The plan of a retry: the step failed and is tried again after a delay. */
export interface RetryPlan {
  kind?: string | null;
  delay_ms?: number | null;
}

/** The failure, and the time of the next attempt. */
export interface RetryView {
  attempt: number;
  delay_ms: number;
  error: string;
  retrying_at: string;
  kind?: string | null;
  provider?: string | null;
  status_code?: number | null;
}

/** An approval rule. `tool` is a glob for the tool's name, or `mcp:SERVER/TOOL` for tools of MCP servers. Every path in `match` has to match; other arguments may have any value. The model gets `reason` if the rule denies. `problem` is set for a stored rule that is no longer valid. If it restricts, it matches every call of its tool. If it permits, it matches none. A rule with an unknown field cannot be read, because the field may narrow the rule. */
export interface Rule {
  tool: string;
  action: RuleAction;
  match?: Record<string, string>;
  reason?: string;
  problem?: string | null;
}

/** The effects that a rule can have on a matching call, from strongest to weakest. `always` approves the call without asking. The answer "do not ask again" creates such a rule. */
export type RuleAction = "allow" | "always" | "ask" | "deny";

/** A rule. `tool` is a glob over the tool's name; the values in `match` are globs over arguments, by their path. A glob has at most 256 characters and 16 wildcards. Tools of MCP servers are named `mcp:SERVER/TOOL`. */
export interface RuleBody {
  tool: string;
  action: RuleAction;
  match?: Record<string, string>;
  reason?: string;
  problem?: null;
}

/** All rules of the chat. They replace the earlier ones. */
export interface RulesBody {
  rules: RuleBody[];
}

export interface RulesView {
  rules: Rule[];
}

export interface RunDetailView {
  id: string;
  chat_id: string;
  parent_run_id: string | null;
  root_chat_id: string;
  parent_chat_id: string | null;
  kind: RunKind;
  status: RunStatus;
  provider: string | null;
  model: string | null;
  model_config_id: string | null;
  trigger_message_id: number | null;
  history_tip_message_id: number | null;
  summary: RunSummary;
  started_at: string;
  updated_at: string;
  finished_at: string | null;
  steps: StepSummaryView[];
}

/** The sums of a run's steps so far. `duration_ms` is null while the run is open, `cost_micros` if none is known. */
export interface RunFigures {
  step_count: number;
  input_tokens: number;
  output_tokens: number;
  reasoning_tokens: number;
  cache_read_tokens: number;
  cache_creation_tokens: number;
  cost_micros: number | null;
  ttft_ms: number | null;
  duration_ms: number | null;
}

export type RunKind = "advisor" | "chat_turn" | "compaction" | "quickgen" | "title_generation";

export interface RunListView {
  runs: RunView[];
  next_cursor: string | null;
  recording: RecordingView;
}

export type RunStatus = "completed" | "error" | "in_progress" | "interrupted";

/** The label and the sums of a run. The first four sums are always present; the others are left out if they are zero. */
export interface RunSummary {
  step_count?: number;
  attempt_count?: number;
  total_input_tokens?: number;
  total_output_tokens?: number;
  first_message?: string;
  endpoint_label?: string;
  ttft_ms?: number;
  retry_count?: number;
  total_reasoning_tokens?: number;
  total_cache_read_tokens?: number;
  total_cache_creation_tokens?: number;
  cost_micros?: number;
  has_error?: boolean;
  truncated?: boolean;
  continues?: string;
}

/** One piece of model work. The chats, the model and the messages that it names may have been deleted. */
export interface RunView {
  id: string;
  chat_id: string;
  parent_run_id: string | null;
  root_chat_id: string;
  parent_chat_id: string | null;
  kind: RunKind;
  status: RunStatus;
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

/** A saved prompt. `variables` are the names that the text has in double braces, in their order. */
export interface SavedPrompt {
  name: string;
  scope: "deployment" | "user";
  summary: string;
  updated_at: string;
  text: string;
  variables: string[];
}

/** The text of a saved prompt. Variables are written in double braces: `{{topic}}`. */
export interface SavedPromptBody {
  text: string;
}

export interface SavedPromptPage {
  items: SavedPromptSummary[];
  next_cursor: string | null;
}

/** A saved prompt without its text. `summary` is the beginning of the text, in one line. `scope` is `user` for a prompt of the caller, and `deployment` for one that administrators share with everyone. */
export interface SavedPromptSummary {
  name: string;
  scope: "deployment" | "user";
  summary: string;
  updated_at: string;
}

/** The scopes of an API token. A token does not allow more than the rights of its user. */
export type Scope = "admin" | "all" | "chat:read" | "chat:write" | "usage:read";

/** The newest message of a chat's family that matches a search. All fields are null if only a title matches. `chat_id` is the chat of the message, which may be a subagent's. `snippet` is plain text around the match. */
export interface SearchMatch {
  chat_id?: string | null;
  message_id?: number | null;
  snippet?: string | null;
}

/** The dismissed notice. `through` is its value. Accesses after it are shown in the next notice. */
export interface SeenBody {
  through: number;
}

/** A message. The other fields are also stored in the chat and apply to later turns. */
export interface SendBody {
  content: (TextInput | FileInput | FileReferenceInput)[];
  busy_behavior?: BusyBehavior;
  client_id?: string | null;
  model_config_id?: string | null;
  reasoning_effort?: Effort | null;
  mcp_server_ids?: string[] | null;
  plan_mode?: boolean | null;
}

/** The response to a send. `messages` are all visible messages that this request inserted, in order. Clients insert all of them. */
export interface SendView {
  queued: boolean;
  message: MessageView | null;
  queued_message: QueuedMessageView | null;
  messages: MessageView[];
  chat: ChatState;
  warnings?: string[];
}

/** One question: a form with fields, or, with `url`, an address that the user opens before the call continues. */
export interface ServerQuestion {
  id: string;
  message?: string;
  fields?: FormField[];
  url?: string;
}

/** A session. `current` is true for the session of this request. */
export interface SessionView {
  id: string;
  created_at: string;
  last_seen_at: string;
  expires_at: string;
  ip: string | null;
  user_agent: string | null;
  current: boolean;
}

/** The groups that the caller may see. */
export interface SettingsView {
  groups: GroupsView;
}

/** The first administrator. `token` is the part after the # of the address that the server printed at its first start. */
export interface SetupBody {
  token: string;
  email: string;
  username?: string | null;
  name?: string;
  password: string;
}

export interface SetupStatus {
  needed: boolean;
}

/** A reader of the chat. `user` is `everyone` if all users may read it. */
export interface ShareView {
  user: "everyone" | PublicUser;
  role: string;
  granted_by: string | null;
  at: string;
}

/** A request of an export. Its first `prefix_len` messages are those of the step with the number `prefix_from`. `tools` is null if the tools are those of that step. */
export interface SharedRequestView {
  prefix_from: number | null;
  prefix_len: number;
  messages: NormalizedMessage[];
  tools: NormalizedTool[] | null;
  options: Record<string, number>;
  tool_choice: string | null;
  effort: string | null;
  schema_name: string | null;
  structured_output: boolean;
  provider_option_names: string[];
}

/** The users who get (`read`) or lose (null) the right to read. Other users are not changed. */
export interface SharesBody {
  users?: Record<string, "read" | null>;
  everyone?: "read" | null;
}

/** Any of the keys; absent keys keep their values. */
export interface SharingSettingsChange {
  enabled?: boolean;
}

export interface SharingSettingsValues {
  enabled?: boolean;
}

export interface Source {
  type: "source";
  url: string;
  source_id?: string | null;
  title?: string | null;
  provider_meta?: Record<string, unknown> | null;
}

/** Any of the keys; absent keys keep their values. */
export interface SpendSettingsChange {
  enabled?: boolean;
  default_limit_micros?: number;
  period?: PeriodKind;
}

/** The group `spend` of the runtime settings. A limit of 0 means no limit. */
export interface SpendSettingsValues {
  enabled?: boolean;
  default_limit_micros?: number;
  period?: PeriodKind;
}

/** The spending of the caller. `limit_micros` is null if the caller has no limit. Calls with the user's own keys do not count. */
export interface SpendView {
  period: Period;
  spent_micros: number;
  limit_micros: number | null;
}

/** Parameters that may change at a start: mutable and ephemeral ones. */
export interface StartWorkspaceBody {
  parameters?: Record<string, unknown>;
}

export type Status = "active" | "disabled";

export interface StatusChanged {
  type: "status";
  status: string;
  archived: boolean;
}

/** Metadata of a step. `transport` is `unobserved` for providers whose exchanges cannot be recorded. */
export interface StepMetadata {
  stream_summary?: StreamSummary | null;
  prior_errors?: PriorError[];
  retrying?: RetryPlan | null;
  transport?: string | null;
  structured_output?: boolean;
  truncated?: boolean;
}

/** The steps of both runs with the same number. A shorter run has no step for the last ones. `same_messages` is the number of messages at the beginning that are the same in both prompts. `changed` are the names of settings that differ: `model`, `tools`, `effort`, or others. Both are null if a prompt is not recorded, and `has_same_answer` is null if an answer is not. */
export interface StepPair {
  number: number;
  one: ComparedStepView | null;
  other: ComparedStepView | null;
  same_messages?: number | null;
  changed?: string[] | null;
  has_same_answer?: boolean | null;
}

/** The statuses of a step, in the order of their priority. All but the first are terminal. */
export type StepStatus = "completed" | "error" | "in_progress" | "interrupted";

/** One logical model call, without its prompt. `shared_messages` are the same as in the previous step. */
export interface StepSummaryView {
  id: string;
  number: number;
  operation: "generate" | "stream";
  status: StepStatus;
  provider: string | null;
  model: string | null;
  model_config_id: string | null;
  history_tip_message_id: number | null;
  assistant_message_id: number | null;
  message_count: number;
  shared_messages: number;
  tool_count: number;
  usage: NormalizedUsage | null;
  cost_micros: number | null;
  finish_reason: string | null;
  error: NormalizedError | null;
  metadata: StepMetadata;
  cache: CacheDiagnosis | null;
  ttft_ms: number | null;
  started_at: string;
  finished_at: string | null;
  attempts: AttemptSummaryView[];
}

/** One logical model call with its whole prompt and its answer. */
export interface StepView {
  id: string;
  number: number;
  operation: "generate" | "stream";
  status: StepStatus;
  provider: string | null;
  model: string | null;
  model_config_id: string | null;
  history_tip_message_id: number | null;
  assistant_message_id: number | null;
  message_count: number;
  shared_messages: number;
  tool_count: number;
  usage: NormalizedUsage | null;
  cost_micros: number | null;
  finish_reason: string | null;
  error: NormalizedError | null;
  metadata: StepMetadata;
  cache: CacheDiagnosis | null;
  ttft_ms: number | null;
  started_at: string;
  finished_at: string | null;
  attempts: AttemptSummaryView[];
  request: NormalizedRequest;
  response: NormalizedResponse | null;
}

export type StreamEvent = Hello | HistoryReset | MessageAdded | QueueUpdate | StatusChanged | ErrorShown | ActionRequired | RetryChanged | PreviewReset | PreviewTruncated | Synced | DebugUpdate | Heartbeat | Goodbye | Pong | Ready | ChatChanged | ChatGone | ListResync | GitChanges | MessagePart;

export interface StreamSummary {
  part_count?: number;
  text_delta_count?: number;
  tool_call_count?: number;
  source_count?: number;
  warning_count?: number;
  error_count?: number;
  finish_reason?: string | null;
  last_error?: string | null;
}

/** `chat_default` is the model of the parent. `deployment_default` is the administrators' choice for the kind. */
export interface SubagentOverrideChange {
  mode: "chat_default" | "deployment_default" | "model";
  model_config_id?: string | null;
  reasoning_effort?: Effort | null;
}

/** Any of the keys; absent keys keep their values. */
export interface SubagentSettingsChange {
  enabled?: boolean;
  max_minutes?: number;
  stall_minutes?: number;
  wake_parent?: boolean;
}

/** Limits of subagents. `max_minutes` is the longest turn of a subagent. After `stall_minutes` without progress, a subagent is reported as stalled. With `wake_parent`, a chat at rest is resumed when one of its subagents ends. */
export interface SubagentSettingsValues {
  enabled?: boolean;
  max_minutes?: number;
  stall_minutes?: number;
  wake_parent?: boolean;
}

export interface Synced {
  type: "synced";
  snapshot_version: number;
  history_version: number;
  queue_version: number;
  last_message_id: number;
}

/** The fields to change; absent fields keep their values. If `allowed_users` and `allowed_roles` are both empty, all users may use the template. */
export interface TemplatePatchBody {
  enabled?: boolean;
  deprecated?: boolean;
  agents_allowed?: boolean;
  allowed_users?: string[];
  allowed_roles?: UserRole[];
}

/** A template. `revision` and `readme` are present only if a single template is read. Access lists are present only for administrators. `network` is the requested network: none, hosts, public or host. `granted_network` is the network that its workspaces get; the server's settings may lower it. `hosts` are the hosts that can be reached with the network `hosts`. `unavailable` is the reason why workspaces of the template cannot be started on this server, and the remedy; null if they can be started. */
export interface TemplateView {
  name: string;
  display_name: string;
  description: string;
  icon: string;
  driver: string;
  network: string;
  granted_network: string;
  hosts: string[];
  unavailable: string | null;
  parameters: ParameterView[];
  presets: PresetView[];
  agents_allowed: boolean;
  deprecated: boolean;
  enabled: boolean;
  shipped: boolean;
  updated_at: string;
  revision?: string;
  readme?: string;
  allowed_users?: string[];
  allowed_roles?: string[];
}

export interface Text {
  type: "text";
  text: string;
  refusal?: boolean;
  provider_meta?: Record<string, unknown> | null;
}

export interface TextInput {
  type: "text";
  text: string;
}

/** A proposed title. It is empty if the chat has no text. */
export interface TitleView {
  title: string;
}

/** A new token. `expires_in_days` defaults to 90, or to the longest lifetime that this server allows if that is shorter. */
export interface TokenBody {
  name: string;
  scopes: rookeryOf_domain__access__rights__Scope[];
  expires_in_days?: number | null;
}

/** A token without its secret. */
export interface TokenView {
  id: string;
  name: string;
  scopes: Scope[];
  created_at: string;
  expires_at: string;
  last_used_at: string | null;
}

/** Numbers of tokens. Input excludes tokens read from a cache; output includes reasoning. */
export interface TokensView {
  input: number;
  cache_read: number;
  cache_write: number;
  output: number;
  reasoning: number;
}

/** A tool call. `args_delta` is used in live parts only. `parsed_commands` is set for shell text, if possible. */
export interface ToolCall {
  type: "tool-call";
  tool_call_id: string;
  tool_name: string;
  args?: unknown;
  args_delta?: string | null;
  parsed_commands?: string[][] | null;
  mcp_server_id?: string | null;
  provider_executed?: boolean;
  hook_rewritten?: boolean;
  created_at?: string | null;
  provider_meta?: Record<string, unknown> | null;
}

/** The tools that differ in the step with this number, which is the first with a difference. */
export interface ToolDifference {
  number: number;
  only_one: string[];
  only_other: string[];
  changed: string[];
}

/** A tool result. `result_delta` and `result_reset` are used in live parts only. */
export interface ToolResult {
  type: "tool-result";
  tool_call_id: string;
  tool_name: string;
  result?: unknown;
  result_delta?: string | null;
  result_reset?: boolean;
  is_error?: boolean;
  is_media?: boolean;
  mcp_server_id?: string | null;
  provider_executed?: boolean;
  created_at?: string | null;
  provider_meta?: Record<string, unknown> | null;
}

export interface ToolResultInput {
  tool_call_id: string;
  output: unknown;
  is_error?: boolean;
}

/** The results of all calls that the chat waits for. */
export interface ToolResultsBody {
  results: ToolResultInput[];
}

/** The setting `mcp.tool_search`. `auto` defers the tools if they cost more than a tenth of the window. */
export type ToolSearch = "always" | "auto" | "never";

/** The transport of a server. `auto` tries streamable HTTP first, then SSE. */
export type Transport = "auto" | "sse" | "streamable_http";

/** The result of a try. `tried` names the request and its address. `models` are the ids that the provider lists. */
export interface TryView {
  ok: boolean;
  tried: string;
  latency_ms: number;
  models: string[];
  error: ProbeError | null;
}

/** The mark of a turn that was stopped or has failed, shown to users only. `outcome` is `stopped` or `failed`. `kind` and `message` are those of the error. The error itself is gone when the chat continues. */
export interface TurnEnd {
  type: "turn-end";
  outcome: string;
  kind?: string | null;
  message?: string;
}

/** The fields to change; absent fields keep their values. `idle_stop_after` is in seconds; 0 means never. */
export interface UpdateWorkspaceBody {
  name?: string;
  idle_stop_after?: number;
}

export interface UpstreamModel {
  id: string;
}

export interface UsageReportView {
  from: string;
  to: string;
  group_by: GroupBy;
  items: UsageRow[];
}

/** The sums of one group. `key` is an id for users, providers and chats, else a name or a day. `name` is null if the object is deleted, and for chats of other users. Deleted chats are one group with an empty key. */
export interface UsageRow {
  cost_micros: number;
  request_count: number;
  unpriced_request_count: number;
  tokens: TokensView;
  runtime_ms: number;
  key: string;
  name: string | null;
}

/** The token counts of a step. */
export interface UsageView {
  input_tokens: number | null;
  output_tokens: number | null;
  total_tokens: number | null;
  reasoning_tokens: number | null;
  cache_write_tokens: number | null;
  cache_read_tokens: number | null;
  context_limit: number | null;
}

export interface User {
  id: string;
  username: string;
  name: string;
  email: string | null;
  role: UserRole;
  status: Status;
  spend_limit_micros: number | null;
  created_at: string;
  last_seen_at: string | null;
}

/** Changes of a user. Absent fields keep their values. Only administrators can change role, status and spend limit. */
export interface UserPatchBody {
  name?: string | null;
  email?: string;
  username?: string;
  role?: UserRole;
  status?: Status;
  spend_limit_micros?: number | null;
}

export type UserRole = "admin" | "auditor" | "member";

/** The version of the server. `build` is the build of the web application; null if there is none. `features` are the tags of this API. A client hides functions whose tag is missing, because the server is older or was built without them. */
export interface VersionView {
  version: string;
  commit: string | null;
  api: number;
  stream_protocol: number;
  schema: number;
  build: string | null;
  features: string[];
}

/** Warnings to administrators. `in_the_clear`: other machines reach the server without https. */
export type Warning = "in_the_clear";

/** The size of the model's context window in tokens, by source; null means unknown. `effective` is the smallest of them. `catalogued` is from this version's table, `reported` from the provider's own endpoint, and `learned` from requests that were refused as too long: `learned_from` is `provider` for a number that the provider named, `halving` for an estimate. `differs` is true if one of them differs by more than a tenth from `context_limit`. */
export interface WindowView {
  effective: number;
  catalogued: number | null;
  reported: number | null;
  reported_at: string | null;
  learned: number | null;
  learned_from: "halving" | "provider" | null;
  learned_at: string | null;
  differs: boolean;
}

/** The workspace context that the model gets from this row on, shown to users only. */
export interface WorkspaceContext {
  type: "workspace-context";
  workspace_id: string;
  generation: number;
  hash: string;
  files?: ContextFile[];
  skills?: string[];
  mcp_servers?: string[];
}

/** A file of the workspace. `path` is relative to the working folder, or absolute for a stored tool result. `text` is null if the file is not text. `truncated`: the file is longer than the first MiB. */
export interface WorkspaceFileView {
  path: string;
  text: string | null;
  truncated: boolean;
}

/** A server that a file of the workspace defines: a `command`, which runs in the workspace, or a `url`. `hash` is that of its entry: the command, its arguments, its working folder, and the names (never the values) of its variables; or the URL, its type, the names of its headers, and those of the variables whose values are in headers. `server` is the id of an agreed server with a URL among the MCP servers, and `login` is the owner's login there, or null if it needs none. `state` is asked, agreed, denied or changed (the answer was about another entry of this name). In all texts, characters that could hide or reorder the displayed text are escaped, such as `\u202e`. `error` is the reason why an agreed server does not run. `tools` are the names of its tools while it runs. A server with a URL is running if chats of the workspace use it. */
export interface WorkspaceMcpServerView {
  name: string;
  hash: string;
  state: McpState;
  folder: string;
  command: string | null;
  args: string[];
  env: string[];
  url: string | null;
  type: string | null;
  headers: string[];
  server: string | null;
  login: LoginState | null;
  running: boolean;
  error: string | null;
  tools: string[];
  decided_at: string | null;
}

/** Any of the keys; absent keys keep their values. */
export interface WorkspaceSettingsChange {
  max_per_user?: number;
  max_running_per_user?: number;
  max_running_per_node?: number;
  max_idle_minutes?: number;
  delete_after_stopped_days?: number;
}

/** Limits of workspaces. A number of 0 means no limit, and a time of 0 means never. `max_idle_minutes` is the upper limit of the idle times of templates. */
export interface WorkspaceSettingsValues {
  max_per_user?: number;
  max_running_per_user?: number;
  max_running_per_node?: number;
  max_idle_minutes?: number;
  delete_after_stopped_days?: number;
}

/** A workspace. `idle_stop_after` is in seconds; 0 means never. `chats` are the newest 20 chats bound to it. `operation` is the running operation. `startup_operation` is the operation whose log has the output of the startup script, while that runs or after it failed (`agent_state` is `script_failed` or `script_timeout`). `warning` is a text: the workspace is not confined, its disk is nearly full, or it will be deleted soon because it is unused. `network` is its network since the last start: none, hosts, public, or host (the machine's own network with its localhost); null before the first start. */
export interface WorkspaceView {
  id: string;
  owner: PublicUser | null;
  name: string;
  template: string | null;
  template_revision: string | null;
  driver: string;
  parameters: Record<string, unknown>;
  status: string;
  error: string | null;
  error_code: string | null;
  warning: string | null;
  agent_state: string;
  startup_exit_code: number | null;
  os: string | null;
  arch: string | null;
  directory: string | null;
  network: string | null;
  idle_stop_after: number;
  stops_at: string | null;
  last_used_at: string;
  started_at: string | null;
  created_at: string;
  updated_at: string;
  chats: string[];
  operation: OperationView | null;
  startup_operation: string | null;
}

/** The scopes of an API token. A token does not allow more than the rights of its user. */
export type rookeryOf_domain__access__rights__Scope = "all" | "chat:read" | "chat:write" | "usage:read" | "admin";

/** The chats to which a remembered answer applies: the chat and its subagents, or all chats of its owner. */
export type rookeryOf_domain__chat__approvals__Scope = "chat" | "user";

export type rookeryOf_store__people__users__Status = "active" | "disabled";

export type rookeryOf_store__workspaces__workspaces__Status = "pending" | "starting" | "running" | "stopping" | "stopped" | "failed" | "deleting" | "deleted";
