/** The rules that the answer "always" can create, and the calls that they would allow. */
import type { Action } from "@/api/types.gen";
import { fields, list, text } from "@/chat/tool_texts";
import type { Message } from "@/chat/types";

type AskedCall = Action["tool_calls"][number];
type Match = Record<string, string>;

export interface AlwaysOffer {
  scope: "chat" | "user";
  match: Match;
  label: string;
  /** The pattern as one line; empty if the rule covers all calls of the tool. */
  pattern: string;
  effect: string;
}

const MOST_EARLIER = 3;

/** Return the offers for a call, from the narrowest to the widest. */
export function alwaysOffers(call: AskedCall): AlwaysOffer[] {
  const { always } = call;
  if (!always) return [];
  const isCommand = text(fields(call.args).command) !== "";
  const offers: AlwaysOffer[] = [];
  const add = (scope: "chat" | "user", match: Match | null | undefined, label: string, effect: string) => {
    if (!match) return;
    const pattern = patternOf(match);
    if (!offers.some((one) => one.scope === scope && one.pattern === pattern))
      offers.push({ scope, match, label, pattern, effect });
  };
  const exact = isCommand ? "This exact command" : "This exact action";
  add("chat", always.user, `${exact} in this chat`, "Any other call is asked about.");
  add("user", always.user, `${exact} in all my chats`, "Any other call is asked about.");
  const { program } = always;
  if (program) {
    const start = (program.command ?? "").replace(/\s*\*$/, "");
    const effect = `Any command that begins with “${start} ”. Not commands joined by ; && | or redirected.`;
    add("chat", program, `${start} with any arguments in this chat`, effect);
    add("user", program, `${start} with any arguments in all my chats`, effect);
  }
  if (Object.keys(always.chat ?? {}).length > 0)
    add("chat", always.chat, "What the rule asks about, in this chat", "All calls that match this pattern.");
  add("chat", {}, "This tool in this chat", "Every call of this tool in this chat and its subagents.");
  return offers;
}

function patternOf(match: Match): string {
  const entries = Object.entries(match);
  if (entries.length === 1 && entries[0]?.[0] === "command") return entries[0][1];
  return entries.map(([path, glob]) => `${path}: ${glob}`).join(", ");
}

/** Return commands of earlier calls in the chat that the rule would have allowed, the newest first. */
export function matchingCommands(offer: AlwaysOffer, call: AskedCall, messages: Iterable<Message>): string[] {
  const glob = offer.match.command;
  if (glob === undefined && offer.pattern !== "") return [];
  const pattern = glob === undefined ? null : expression(glob);
  const found: string[] = [];
  for (const message of messages)
    for (const part of list(message.content)) {
      if (part.type !== "tool-call" || part.tool_name !== call.tool_name || part.tool_call_id === call.tool_call_id)
        continue;
      const command = text(fields(part.args).command);
      if (command && (pattern === null || pattern.test(command))) found.push(command);
    }
  return [...new Set(found.reverse())].slice(0, MOST_EARLIER);
}

/** Return a glob of a permitting rule as an expression. Its wildcards never match characters of the shell's syntax. */
function expression(glob: string): RegExp {
  const any = "(?:(?![\\u0000-\\u001f;&|<>$`(){}\\\\]|\\.\\.(?:/|\\s|$)).)";
  const source = glob.replace(/\\([\s\S])|[*?]|[\s\S]/g, (found, escaped: string | undefined) => {
    if (escaped === undefined && found === "*") return `${any}*`;
    if (escaped === undefined && found === "?") return any;
    return (escaped ?? found).replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&");
  });
  return new RegExp(`^${source}$`, "u");
}
