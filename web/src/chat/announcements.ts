/**
 * Screen reader announcements about a turn: its start, its result, and open questions. Single tokens are never
 * announced. Users who want to follow an answer hear whole sentences, a few seconds apart.
 */
import type { Preview } from "@/chat/preview";
import type { ChatData } from "@/chat/reducer";
import type { Action, Message, Status } from "@/chat/types";

export type AnswersHeard = "off" | "end" | "sentence";

export interface Speech {
  text: string;
  assertive: boolean;
}

const MOST = 300;
const APART_MS = 3_000;

const NEEDS: Record<string, string> = { ask_user_question: "Asks a question", propose_plan: "Plan ready" };

/** Return the announcement for a change. `reader` tracks which part of the answer was already announced. */
export function speechOf(was: ChatData, now: ChatData, heard: AnswersHeard, reader: SentenceReader): Speech | null {
  if (!was.loaded) return null;
  const queued = now.queue.length;
  const said = [
    was.status === now.status ? "" : ofStatus(now.status, now, heard, reader),
    queued > was.queue.length ? `${queued} ${queued === 1 ? "message" : "messages"} queued` : "",
  ].filter(Boolean);
  return said.length > 0
    ? { text: said.join(". "), assertive: was.status !== "error" && now.status === "error" }
    : null;
}

function ofStatus(status: Status, data: ChatData, heard: AnswersHeard, reader: SentenceReader): string {
  switch (status) {
    case "running":
      return "Agent is working";
    case "requires_action":
      return `Needs you: ${wishOf(data)}`;
    case "error":
      return "The turn failed";
    case "interrupting":
      return "";
    case "waiting":
      return ofEnd(data, heard, reader);
  }
}

/** Return the name of the MCP server whose question waits for the user; null if none does. */
export function askingServer(action: Pick<Action, "tool_calls">): string | null {
  return action.tool_calls.find((call) => call.elicitation)?.elicitation?.server ?? null;
}

function wishOf({ action }: ChatData): string {
  if (action?.kind !== "approval") return "Wants tool results";
  const server = askingServer(action);
  return server ? `${server} asks a question` : "Asks for permission";
}

function ofEnd({ messages, order }: ChatData, heard: AnswersHeard, reader: SentenceReader): string {
  const last = messages.get(order.findLast((id) => messages.get(id)?.role === "assistant") ?? 0);
  if (last?.finish_reason === "interrupted") return "Stopped";
  const asks = last?.content.find((part) => part.type === "tool-call" && Object.hasOwn(NEEDS, part.tool_name));
  if (asks?.type === "tool-call") return `Needs you: ${NEEDS[asks.tool_name]}`;
  const text = last ? wordsOf(last.content) : "";
  if (heard === "off" || !text) return "Agent is done";
  const rest = heard === "sentence" ? reader.restOf(text) : text;
  if (!rest) return "Agent is done";
  return rest.length > MOST ? `${rest.slice(0, MOST)}, ${text.length} characters` : rest;
}

function wordsOf(content: Message["content"]): string {
  return content.flatMap((part) => (part.type === "text" ? [part.text] : [])).join("\n\n");
}

/** Finds complete sentences of a growing answer that were not announced yet. */
export class SentenceReader {
  private episode: readonly [number, number] = [-1, 0];
  private text = "";
  private said = 0;
  /** Text of finished steps that is still to be announced. */
  private owed = "";
  private lastAt = Number.NEGATIVE_INFINITY;

  next(preview: Preview, now: number): string | null {
    this.follow(preview);
    if (now - this.lastAt < APART_MS) return null;
    const end = endOfSentences(this.text);
    const words = `${this.owed} ${this.text.slice(this.said, Math.max(end, this.said))}`.trim();
    this.owed = "";
    this.said = Math.max(end, this.said);
    if (!words) return null;
    this.lastAt = now;
    return words;
  }

  /** Return the part of the finished answer that was not announced, and reset for the next turn. */
  restOf(text: string): string {
    const heard = this.text.slice(0, this.said);
    const rest = text.startsWith(heard) ? text.slice(heard.length) : text;
    [this.text, this.said, this.owed] = ["", 0, ""];
    return rest.trim();
  }

  private follow({ episode, blocks }: Preview): void {
    if (episode[0] !== this.episode[0] || episode[1] !== this.episode[1]) {
      // A new attempt repeats the whole text; a new step continues it.
      if (episode[0] !== this.episode[0]) this.owed = `${this.owed} ${this.text.slice(this.said)}`.trim();
      this.said = 0;
      this.episode = episode;
    }
    this.text = blocks.flatMap((block) => (block.kind === "text" ? [block.text] : [])).join("\n\n");
  }
}

/** Return the end of the last complete sentence. A complete line counts as a sentence. */
function endOfSentences(text: string): number {
  let end = 0;
  for (const found of text.matchAll(/[.!?\u3002\uff01\uff1f]["')\]]*(?=\s)|\n/g)) end = found.index + found[0].length;
  return end;
}
