/**
 * Builds the rows of a timeline from messages. Pure. Rows keep their keys when messages are appended, prepended or
 * committed, and unchanged rows keep their identity, so that only new rows render.
 */
import { type Block, newTool, type ToolView, withResult } from "@/chat/preview";
import { ReasoningIds } from "@/chat/reasoning_ids";
import type { ChatError, FilePart, Message, NoticePart, Part, SourcePart } from "@/chat/types";
import { fields, isGroupable, isQuiet, text } from "./tool_texts";

export type GroupItem = { kind: "tool"; call: ToolView } | ({ kind: "reasoning" } & Thought);

/** A block of reasoning. `id` is its id once it is stored; `liveId` is its id from the first live part on. */
export interface Thought {
  id: string;
  liveId: string;
  text: string;
  startedAt: string | null;
  endedAt: string | null;
}

export interface TurnFigures {
  endedAt: string;
  startedAt: string;
  modelConfigId: string | null;
  effort: string | null;
  steps: number;
  input: number;
  cached: number;
  output: number;
  costMicros: number | null;
  answer: string;
  firstMessageId: number;
  lastMessageId: number;
}

export type Row =
  | { kind: "day"; key: string; at: string }
  | { kind: "user"; key: string; message: Message; inContext: boolean; steered: boolean }
  | { kind: "prose"; key: string; text: string; refusal: boolean; messageId: number }
  | ({ kind: "reasoning"; key: string } & Thought)
  | { kind: "tool"; key: string; call: ToolView; active: boolean; latest: boolean }
  | { kind: "group"; key: string; items: GroupItem[]; active: boolean }
  | { kind: "sources"; key: string; id: string; sources: SourcePart[] }
  | { kind: "files"; key: string; files: FilePart[] }
  | { kind: "notice"; key: string; text: string }
  | { kind: "agent"; key: string; notice: NoticePart }
  | { kind: "unknown"; key: string; part: unknown }
  | { kind: "compaction"; key: string; id: string; result: Record<string, unknown>; running: boolean }
  | { kind: "interrupted"; key: string; at: string; next: "continue" | "retry"; latest: boolean }
  | { kind: "failed"; key: string; at: string; error: ChatError }
  | { kind: "footer"; key: string; figures: TurnFigures };

/** The mark of a stopped turn, or of one that has failed. */
type EndBlock = { kind: "stopped"; next: "continue" | "retry" } | { kind: "failed"; error: ChatError };

/** A block, with its message and its index in the message. */
interface Placed {
  block: Block | EndBlock;
  message: Message;
  index: number;
  /** The id of reasoning before it is stored. */
  liveId?: string;
}

interface Turn {
  user: Message | null;
  rest: Message[];
}

/** Return whether a message only tells the parent about its subagents. The server writes it, not the user. */
export function isNotice(message: Message): boolean {
  return message.role === "user" && message.content.length > 0 && message.content.every(isNoticePart);
}

function isNoticePart(part: Message["content"][number]): boolean {
  return part.type === "agent-notice";
}

/**
 * Split messages into turns: a user message and all messages up to the next one. A notice between two steps belongs to
 * the running turn; another notice starts a turn.
 */
export function turnsOf(messages: readonly Message[]): Turn[] {
  const turns: Turn[] = [];
  for (const message of messages) {
    const isBetweenSteps = isNotice(message) && turns.at(-1)?.rest.at(-1)?.role === "tool";
    if (message.role === "user" && !isBetweenSteps) turns.push({ user: message, rest: [] });
    else if (turns.length === 0) turns.push({ user: null, rest: [message] });
    else turns.at(-1)?.rest.push(message);
  }
  return turns;
}

/** Return whether the turn goes on after this message: a message of the user that follows has steered it. */
function isMidTurn(last: Message | undefined): boolean {
  return last?.role === "tool" && !last.content.some(isStop);
}

const COMPACTION = "chat_summarized";
const STOPS = new Set(["interrupted", "interrupted_by_user", "interrupted_by_message"]);

/** Return whether a result only says that its call was stopped with the turn. */
function isStop(part: Part): boolean {
  return part.type === "tool-result" && Boolean(part.is_error) && STOPS.has(text(fields(part.result).reason));
}

/** Return the blocks of a turn in order, with results joined to their calls. */
function placedBlocks(messages: readonly Message[], names: ReasoningIds): Placed[] {
  const placed: Placed[] = [];
  const calls = new Map<string, Placed>();
  let stopped: Message | null = null;
  for (const message of messages) {
    if (message.decode_error) {
      placed.push({ block: { kind: "notice", text: "A message could not be read." }, message, index: 0 });
      continue;
    }
    message.content.forEach((part, index) => {
      const at = () => message.created_at;
      switch (part.type) {
        case "text":
          if (!part.text.trim()) return;
          // Texts that the server inserted are not shown as text of the model.
          if (message.role === "system") placed.push({ block: { kind: "notice", text: part.text }, message, index });
          else
            placed.push({ block: { kind: "text", text: part.text, refusal: part.refusal ?? false }, message, index });
          return;
        case "reasoning":
          if (part.text.trim()) {
            const block: Block = {
              kind: "reasoning",
              text: part.text,
              startedAt: part.created_at ?? null,
              endedAt: part.completed_at ?? null,
            };
            placed.push({ block, message, index, liveId: names.next() });
          }
          return;
        case "tool-call": {
          const call: ToolView = {
            ...newTool(part.tool_call_id, part.tool_name),
            args: part.args,
            argsDone: true,
            startedAt: part.created_at ?? message.created_at,
            mcpServerId: part.mcp_server_id ?? null,
            parsedCommands: part.parsed_commands ?? null,
            providerExecuted: part.provider_executed ?? false,
          };
          const one: Placed = { block: { kind: call.providerExecuted ? "search" : "tool", call }, message, index };
          placed.push(one);
          calls.set(call.id, one);
          names.call(call.id);
          return;
        }
        case "tool-result": {
          const known = calls.get(part.tool_call_id);
          if (known && (known.block.kind === "tool" || known.block.kind === "search")) {
            known.block = { kind: known.block.kind, call: withResult(known.block.call, part, at) };
            return;
          }
          const orphan = withResult(newTool(part.tool_call_id, part.tool_name), part, at);
          placed.push({ block: { kind: part.provider_executed ? "search" : "tool", call: orphan }, message, index });
          return;
        }
        case "source": {
          const last = placed.at(-1);
          if (last?.block.kind === "sources" && last.message.id === message.id) {
            if (!last.block.sources.some((one) => one.url === part.url)) last.block.sources.push(part);
          } else placed.push({ block: { kind: "sources", sources: [part] }, message, index });
          return;
        }
        case "file":
          if (part.file_id || part.data) placed.push({ block: { kind: "file", file: part }, message, index });
          return;
        case "hook-notice":
          placed.push({ block: { kind: "notice", text: part.text }, message, index });
          return;
        case "turn-end":
          if (part.outcome === "failed") {
            const error: ChatError = { kind: part.kind ?? null, message: part.message ?? "" };
            placed.push({ block: { kind: "failed", error }, message, index });
          } else placed.push({ block: { kind: "stopped", next: "retry" }, message, index });
          return;
        case "agent-notice":
          placed.push({ block: { kind: "agent", notice: part }, message, index });
          names.call(`m${message.id}`);
          return;
        // Instruction files are shown in the panel, not in the timeline.
        case "workspace-context":
        case "hook-context":
        case "file-reference":
          return;
        default:
          placed.push({ block: { kind: "unknown", part }, message, index });
      }
    });
    if (message.finish_reason === "interrupted" || message.content.some(isStop)) stopped = message;
  }
  return stopped ? withStop(placed, stopped) : placed;
}

/** Add the mark of a stopped turn after everything that was there when it was stopped. */
function withStop(placed: Placed[], message: Message): Placed[] {
  const after = placed.findIndex((one) => one.message.id > message.id);
  const mark: Placed = { block: { kind: "stopped", next: "continue" }, message, index: message.content.length };
  placed.splice(after < 0 ? placed.length : after, 0, mark);
  return placed;
}

export interface RowOptions {
  grouped: boolean;
  /** Whether the card of the current error is shown. The mark of this error is left out then. */
  isFailed?: boolean;
  /** Returns the calendar day of a time, for day separators. */
  dayOf: (at: string) => string;
}

/** Add the rows of a run of calls. A group has the key of its first call, which does not change when calls are added. */
function pushRun(rows: Row[], run: Placed[], active: boolean, options: RowOptions): void {
  let end = run.length;
  // Reasoning after the last call does not belong to the group.
  while (end > 0 && run[end - 1]?.block.kind === "reasoning") end -= 1;
  const done = run.slice(0, end);
  const calls = done.filter((one) => one.block.kind === "tool");
  const first = calls[0];
  if (options.grouped && calls.length >= 2 && first?.block.kind === "tool") {
    const items = done.flatMap((one): GroupItem[] => {
      if (one.block.kind === "tool") return [{ kind: "tool", call: one.block.call }];
      return one.block.kind === "reasoning" ? [{ kind: "reasoning", ...thoughtOf(one, one.block) }] : [];
    });
    rows.push({ kind: "group", key: keyOf(first), items, active });
  } else for (const one of done) pushOne(rows, one, active);
  for (const one of run.slice(end)) pushOne(rows, one, active);
}

function thoughtOf(one: Placed, block: Extract<Block, { kind: "reasoning" }>): Thought {
  const { text, startedAt, endedAt } = block;
  return { id: keyOf(one), liveId: one.liveId ?? keyOf(one), text, startedAt, endedAt };
}

function keyOf({ message, index }: Placed): string {
  return `m${message.id}:${index}`;
}

function pushOne(rows: Row[], one: Placed, active: boolean): void {
  const key = keyOf(one);
  const { block } = one;
  switch (block.kind) {
    case "text":
      rows.push({ kind: "prose", key, text: block.text, refusal: block.refusal, messageId: one.message.id });
      return;
    case "reasoning":
      rows.push({ kind: "reasoning", key, ...thoughtOf(one, block) });
      return;
    case "tool":
      if (block.call.name === COMPACTION) {
        const result = (block.call.result ?? {}) as Record<string, unknown>;
        rows.push({ kind: "compaction", key, id: block.call.id, result, running: !block.call.hasResult });
      } else if (!isQuiet(block.call)) rows.push({ kind: "tool", key, call: block.call, active, latest: false });
      return;
    case "search":
      return;
    case "sources":
      rows.push({ kind: "sources", key, id: key, sources: block.sources });
      return;
    case "file": {
      const last = rows.at(-1);
      if (last?.kind === "files") rows[rows.length - 1] = { ...last, files: [...last.files, block.file] };
      else rows.push({ kind: "files", key, files: [block.file] });
      return;
    }
    case "notice":
      rows.push({ kind: "notice", key, text: block.text });
      return;
    case "agent":
      rows.push({ kind: "agent", key, notice: block.notice });
      return;
    case "stopped":
      if (!active) rows.push({ kind: "interrupted", key, at: one.message.created_at, next: block.next, latest: false });
      return;
    case "failed":
      rows.push({ kind: "failed", key, at: one.message.created_at, error: block.error });
      return;
    case "unknown":
      rows.push({ kind: "unknown", key, part: block.part });
  }
}

/** Return the rows of one turn, without its user row. */
function turnRows(turn: Turn, active: boolean, options: RowOptions): Row[] {
  const rows: Row[] = [];
  let run: Placed[] = [];
  for (const one of placedBlocks(turn.rest, new ReasoningIds(turn.user))) {
    const joins =
      (one.block.kind === "tool" && isGroupable(one.block.call) && !isQuiet(one.block.call)) ||
      (one.block.kind === "reasoning" && run.length > 0);
    if (joins) run.push(one);
    else if (one.block.kind !== "search") {
      pushRun(rows, run, active, options);
      run = [];
      pushOne(rows, one, active);
    }
  }
  pushRun(rows, run, active, options);
  const last = turn.rest.at(-1);
  if (last && !active && turn.rest.some((message) => message.role === "assistant")) {
    rows.push({ kind: "footer", key: `m${last.id}:footer`, figures: figuresOf(turn) });
  }
  return rows;
}

function figuresOf(turn: Turn): TurnFigures {
  const steps = turn.rest.filter((message) => message.role === "assistant");
  const sum = (pick: (message: Message) => number | null | undefined) =>
    steps.reduce((total, message) => total + (pick(message) ?? 0), 0);
  const last = turn.rest.at(-1);
  const spoken = steps.findLast((message) => message.content.some((part) => part.type === "text"));
  const priced = steps.filter((message) => message.cost_micros !== null);
  return {
    startedAt: turn.user?.created_at ?? turn.rest[0]?.created_at ?? "",
    endedAt: last?.created_at ?? "",
    modelConfigId: steps.at(-1)?.model_config_id ?? null,
    effort: steps.at(-1)?.reasoning_effort ?? null,
    steps: steps.length,
    input: sum((m) => m.usage?.input_tokens),
    cached: sum((m) => m.usage?.cache_read_tokens),
    output: sum((m) => m.usage?.output_tokens),
    costMicros: priced.length > 0 ? sum((m) => m.cost_micros) : null,
    answer: (spoken?.content ?? []).flatMap((part) => (part.type === "text" ? [part.text] : [])).join("\n\n"),
    firstMessageId: (turn.user ?? turn.rest[0])?.id ?? 0,
    lastMessageId: last?.id ?? 0,
  };
}

interface CachedTurn {
  first: Message;
  last: Message;
  length: number;
  active: boolean;
  latest: boolean;
  rows: Row[];
}

/**
 * Builds the rows of a chat repeatedly, and only for changes: a turn with the same messages keeps its rows, and the
 * last turn keeps equal rows.
 */
export class RowMaker {
  private readonly cache = new Map<number, CachedTurn>();
  private before: { rows: Row[]; options: RowOptions } | null = null;

  make(messages: readonly Message[], active: boolean, options: RowOptions): Row[] {
    if (this.before && this.before.options.grouped !== options.grouped) this.cache.clear();
    const turns = turnsOf(messages);
    const compactedAt = lastCompaction(messages);
    const rows: Row[] = [];
    let day = "";
    turns.forEach((turn, number) => {
      const first = turn.user ?? turn.rest[0];
      if (!first) return;
      const today = options.dayOf(first.created_at);
      if (today !== day) {
        rows.push(this.same({ kind: "day", key: `day:${today}`, at: first.created_at }));
        day = today;
      }
      if (turn.user) {
        const { id, content } = turn.user;
        content.forEach((part, index) => {
          if (part.type === "agent-notice")
            rows.push(this.same({ kind: "agent", key: `m${id}:${index}`, notice: part }));
        });
      }
      if (turn.user && !isNotice(turn.user)) {
        const inContext = turn.user.id > compactedAt;
        const steered = isMidTurn(turns[number - 1]?.rest.at(-1));
        rows.push(this.same({ kind: "user", key: `m${turn.user.id}`, message: turn.user, inContext, steered }));
      }
      rows.push(...this.turn(turn, first, active && number === turns.length - 1, number === turns.length - 1, options));
    });
    if (options.isFailed) {
      const mark = rows.findLastIndex((row) => row.kind === "failed");
      if (mark >= 0 && isEnd(rows, mark)) rows.splice(mark, 1);
    }
    this.before = { rows, options };
    this.index = new Map(rows.map((row) => [row.key, row]));
    return rows;
  }

  private index = new Map<string, Row>();

  private turn(turn: Turn, first: Message, active: boolean, latest: boolean, options: RowOptions): Row[] {
    const last = turn.rest.at(-1) ?? first;
    const known = this.cache.get(first.id);
    const unchanged =
      known &&
      known.first === first &&
      known.last === last &&
      known.length === turn.rest.length &&
      known.active === active &&
      known.latest === latest;
    if (unchanged) return known.rows;
    const rows = turnRows(turn, active, options).map((row, at, all) => {
      if (row.kind === "tool" && latest) return this.same({ ...row, latest });
      // The mark of a stop that the turn has gone on after offers nothing.
      if (row.kind === "interrupted") return this.same({ ...row, latest: latest && isEnd(all, at) });
      return this.same(row);
    });
    this.cache.set(first.id, { first, last, length: turn.rest.length, active, latest, rows });
    return rows;
  }

  /** Return the previous row object if the row has not changed. */
  private same<T extends Row>(row: T): T {
    const known = this.index.get(row.key);
    return known && known.kind === row.kind && equal(known, row) ? (known as T) : row;
  }
}

/** Return whether nothing but a footer follows this row. */
function isEnd(rows: readonly Row[], at: number): boolean {
  return rows.slice(at + 1).every((row) => row.kind === "footer");
}

/** Compare two rows deeply. Rows are small and consist of plain values. */
function equal(a: unknown, b: unknown): boolean {
  if (a === b) return true;
  if (typeof a !== "object" || typeof b !== "object" || a === null || b === null) return false;
  if (Array.isArray(a) !== Array.isArray(b)) return false;
  const keys = Object.keys(a);
  if (keys.length !== Object.keys(b).length) return false;
  return keys.every((key) => equal((a as Record<string, unknown>)[key], (b as Record<string, unknown>)[key]));
}

function lastCompaction(messages: readonly Message[]): number {
  for (let at = messages.length - 1; at >= 0; at -= 1) {
    const message = messages[at];
    if (message?.content.some((part) => part.type === "tool-result" && part.tool_name === COMPACTION))
      return message.id;
  }
  return 0;
}

/** Return the ids of stored calls in the last turn. Live output for them is shown in their cards. */
export function storedCalls(messages: readonly Message[]): Set<string> {
  const ids = new Set<string>();
  for (let at = messages.length - 1; at >= 0; at -= 1) {
    const message = messages[at];
    if (!message || message.role === "user") break;
    for (const part of message.content) if (part.type === "tool-call") ids.add(part.tool_call_id);
  }
  return ids;
}

/** Return the rows of the running step, with their own keys. `stored` names its reasoning, and comes from `namesAfter`. */
export function liveRows(blocks: readonly Block[], grouped: boolean, stored: ReasoningIds): Row[] {
  const names = stored.copy();
  const message = { id: 0, created_at: "" } as Message;
  const options: RowOptions = { grouped, dayOf: () => "" };
  const rows: Row[] = [];
  let run: Placed[] = [];
  blocks.forEach((block, index) => {
    const one: Placed = { block, message, index };
    if (block.kind === "reasoning") one.liveId = names.next();
    else if (block.kind === "tool" || block.kind === "search") names.call(block.call.id);
    if (block.kind === "tool" && isGroupable(block.call) && !isQuiet(block.call)) run.push(one);
    else if (block.kind === "reasoning" && run.length > 0) run.push(one);
    else {
      pushRun(rows, run, true, options);
      run = [];
      pushOne(rows, one, true);
    }
  });
  pushRun(rows, run, true, options);
  return rows.map((row) => {
    const key = row.key.replace(/^m0:/, "live:");
    return row.kind === "reasoning" ? { ...row, key, id: row.liveId } : { ...row, key };
  });
}

/** Return the ids for the next reasoning blocks of the last turn. */
export function namesAfter(messages: readonly Message[]): ReasoningIds {
  const from = messages.findLastIndex((message) => message.role === "user");
  const names = new ReasoningIds(messages[from] ?? null);
  placedBlocks(messages.slice(from + 1), names);
  return names;
}
