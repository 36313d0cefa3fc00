/** The preview of the running step, built from live parts. */

import type { CallPart, FilePart, NoticePart, Part, ResultPart, SourcePart } from "@/chat/types";
import { PartialJson } from "@/lib/partial_json";

// Chosen: enough to scroll through while the tool runs. The stored result replaces it.
const LIVE_OUTPUT = 64 * 1024;

/** One tool call, live or stored, in the form that cards use. */
export interface ToolView {
  id: string;
  name: string;
  args: unknown;
  /** Whether the arguments are complete. */
  argsDone: boolean;
  /** Live output, the newest 64 KiB. */
  output: string;
  result: unknown;
  hasResult: boolean;
  isError: boolean;
  startedAt: string | null;
  endedAt: string | null;
  mcpServerId: string | null;
  parsedCommands: string[][] | null;
  providerExecuted: boolean;
}

export type Block =
  | { kind: "text"; text: string; refusal: boolean }
  | { kind: "reasoning"; text: string; startedAt: string | null; endedAt: string | null }
  | { kind: "tool"; call: ToolView }
  | { kind: "sources"; sources: SourcePart[] }
  | { kind: "file"; file: FilePart }
  | { kind: "notice"; text: string }
  | { kind: "agent"; notice: NoticePart }
  | { kind: "search"; call: ToolView }
  | { kind: "unknown"; part: unknown };

export interface Preview {
  /** History version and generation attempt. Parts of other episodes are not shown. */
  episode: readonly [number, number];
  lastSeq: number;
  /** The time when this attempt began, by the clock of this page, if it followed another one; else 0. */
  since: number;
  /** The time when the last part arrived, by the clock of this page; 0 before the first. */
  heardAt: number;
  blocks: readonly Block[];
  /** The attempt failed and is retried; its text is dimmed. */
  stale: boolean;
  truncated: boolean;
  /** The earlier blocks, shown until the first replayed part arrives, so that nothing flickers. */
  ghost: readonly Block[] | null;
}

export function emptyPreview(
  episode: readonly [number, number],
  ghost: readonly Block[] | null = null,
  since = 0,
): Preview {
  return { episode, lastSeq: 0, since, heardAt: 0, blocks: [], stale: false, truncated: false, ghost };
}

/** Return the live view of a call whose result is arriving. */
export function liveCall(preview: Preview | null, id: string): ToolView | null {
  const found = preview?.blocks.find((block) => block.kind === "tool" && block.call.id === id);
  return found?.kind === "tool" ? found.call : null;
}

/** Combine a stored call with its live output. Calls are stored before they run, results afterwards. */
export function withLive(call: ToolView, live: ToolView | null): ToolView {
  if (!live || live === call || call.hasResult) return call;
  const { output, result, hasResult, isError, endedAt } = live;
  return { ...call, output, result, hasResult, isError, endedAt };
}

/** Return the blocks of a preview that are shown. */
export function shownBlocks(preview: Preview): readonly Block[] {
  return preview.ghost && preview.blocks.length === 0 ? preview.ghost : preview.blocks;
}

/** Return whether the only change is more text in the last block, which renders its text itself. */
export function isOnlyLonger(before: Preview | null, now: Preview | null): boolean {
  if (!before || !now || before.stale !== now.stale || before.truncated !== now.truncated) return false;
  const old = shownBlocks(before);
  const blocks = shownBlocks(now);
  const end = blocks.length - 1;
  if (end < 0 || old.length !== blocks.length) return false;
  for (let at = 0; at < end; at += 1) if (old[at] !== blocks[at]) return false;
  const [was, is] = [old[end], blocks[end]];
  if (was?.kind === "text" && is?.kind === "text") return was.refusal === is.refusal && is.text.startsWith(was.text);
  if (was?.kind !== "reasoning" || is?.kind !== "reasoning") return false;
  // Reasoning directly after a call is shown with the call.
  const isAlone = blocks[end - 1]?.kind !== "tool";
  return isAlone && was.endedAt === is.endedAt && is.text.startsWith(was.text);
}

/** Return the arriving text, if the last block is text. */
export function lastWords(preview: Preview | null): string | null {
  const last = preview ? shownBlocks(preview).at(-1) : undefined;
  return last?.kind === "text" || last?.kind === "reasoning" ? last.text : null;
}

export function newTool(id: string, name: string): ToolView {
  return {
    id,
    name,
    args: undefined,
    argsDone: false,
    output: "",
    result: undefined,
    hasResult: false,
    isError: false,
    startedAt: null,
    endedAt: null,
    mcpServerId: null,
    parsedCommands: null,
    providerExecuted: false,
  };
}

// Parsers of arriving arguments, by block. They are outside of the state because they are mutable.
const parsers = new WeakMap<ToolView, PartialJson>();

/** Return the blocks with one more part. */
export function appendPart(blocks: readonly Block[], part: Part, now: () => string): readonly Block[] {
  switch (part.type) {
    case "text":
      return appendText(blocks, part.text ?? "", part.refusal ?? false);
    case "reasoning":
      return appendReasoning(blocks, part.text ?? "", part.created_at ?? null, part.completed_at ?? null, now);
    case "tool-call":
      return appendCall(blocks, part, now);
    case "tool-result":
      return appendResult(blocks, part, now);
    case "source":
      return appendSource(blocks, part);
    case "file":
      return part.file_id || part.data ? [...blocks, { kind: "file", file: part }] : blocks;
    case "hook-notice":
      return [...blocks, { kind: "notice", text: part.text }];
    case "agent-notice":
      return [...blocks, { kind: "agent", notice: part }];
    default:
      return blocks;
  }
}

function appendText(blocks: readonly Block[], text: string, refusal: boolean): readonly Block[] {
  const last = blocks.at(-1);
  if (last?.kind === "text") return [...blocks.slice(0, -1), { ...last, text: last.text + text }];
  // Blank text never starts a block. Inside a block it is kept, because it separates words and paragraphs.
  return text.trim() === "" ? blocks : [...blocks, { kind: "text", text, refusal }];
}

function appendReasoning(
  blocks: readonly Block[],
  text: string,
  startedAt: string | null,
  endedAt: string | null,
  now: () => string,
): readonly Block[] {
  const last = blocks.at(-1);
  if (last?.kind === "reasoning") {
    return [...blocks.slice(0, -1), { ...last, text: last.text + text, endedAt: endedAt ?? last.endedAt }];
  }
  if (text.trim() === "") return blocks;
  return [...blocks, { kind: "reasoning", text, startedAt: startedAt ?? now(), endedAt }];
}

function appendCall(blocks: readonly Block[], part: CallPart, now: () => string): readonly Block[] {
  const at = findCall(blocks, part.tool_call_id, part.tool_name);
  const known = at < 0 ? null : callOf(blocks[at]);
  const call: ToolView = {
    ...(known ?? newTool(part.tool_call_id || `local-${blocks.length}`, part.tool_name)),
    name: part.tool_name || (known?.name ?? ""),
    startedAt: part.created_at ?? known?.startedAt ?? now(),
    mcpServerId: part.mcp_server_id ?? known?.mcpServerId ?? null,
    parsedCommands: part.parsed_commands ?? known?.parsedCommands ?? null,
    providerExecuted: part.provider_executed ?? known?.providerExecuted ?? false,
  };
  if (part.args_delta) {
    const parser = (known && parsers.get(known)) || new PartialJson();
    parser.push(part.args_delta);
    parsers.set(call, parser);
    call.args = parser.value;
  }
  if (part.args !== undefined && part.args !== null) {
    call.args = part.args;
    call.argsDone = true;
  }
  return put(blocks, at, { kind: call.providerExecuted ? "search" : "tool", call });
}

function appendResult(blocks: readonly Block[], part: ResultPart, now: () => string): readonly Block[] {
  const at = findCall(blocks, part.tool_call_id, part.tool_name);
  const known = (at < 0 ? null : callOf(blocks[at])) ?? newTool(part.tool_call_id, part.tool_name);
  return put(blocks, at, { kind: isSearch(blocks[at], part) ? "search" : "tool", call: withResult(known, part, now) });
}

/** Apply one part of a result to its call. */
export function withResult(call: ToolView, part: ResultPart, now: () => string): ToolView {
  const next: ToolView = { ...call, argsDone: true, mcpServerId: part.mcp_server_id ?? call.mcpServerId };
  if (part.result_reset) next.output = "";
  if (part.result_delta) next.output = (next.output + part.result_delta).slice(-LIVE_OUTPUT);
  if (part.result !== undefined || part.is_error) {
    next.result = part.result;
    next.hasResult = true;
    next.isError = part.is_error ?? false;
    next.endedAt = part.created_at ?? now();
  }
  return next;
}

function isSearch(block: Block | undefined, part: ResultPart): boolean {
  return block?.kind === "search" || (part.provider_executed ?? false);
}

function appendSource(blocks: readonly Block[], part: SourcePart): readonly Block[] {
  const last = blocks.at(-1);
  if (last?.kind !== "sources") return [...blocks, { kind: "sources", sources: [part] }];
  if (last.sources.some((one) => one.url === part.url)) return blocks;
  return [...blocks.slice(0, -1), { kind: "sources", sources: [...last.sources, part] }];
}

function callOf(block: Block | undefined): ToolView | null {
  return block?.kind === "tool" || block?.kind === "search" ? block.call : null;
}

/** Find the block of a call by its id; without an id, the newest call of this tool without a result. */
function findCall(blocks: readonly Block[], id: string, name: string): number {
  for (let at = blocks.length - 1; at >= 0; at -= 1) {
    const call = callOf(blocks[at]);
    if (call && (id ? call.id === id : call.name === name && !call.hasResult)) return at;
  }
  return -1;
}

function put(blocks: readonly Block[], at: number, block: Block): readonly Block[] {
  if (at < 0) return [...blocks, block];
  return [...blocks.slice(0, at), block, ...blocks.slice(at + 1)];
}
