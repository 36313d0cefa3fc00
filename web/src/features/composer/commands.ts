/** Slash commands at the beginning of a message. */
import type { ContextItemView } from "@/api/types.gen";

export interface Command {
  name: string;
  help: string;
  /** Needs a chat that exists. */
  needsChat: boolean;
}

export const COMMANDS: Command[] = [
  { name: "compact", help: "Summarize the conversation to make room", needsChat: true },
  { name: "plan", help: "Turn plan mode on or off", needsChat: false },
  { name: "model", help: "Choose the model", needsChat: false },
  { name: "effort", help: "Choose how much to think", needsChat: false },
  { name: "stop", help: "Stop the agent", needsChat: true },
  { name: "retry", help: "Try the failed turn again", needsChat: true },
  { name: "title", help: "Suggest a title", needsChat: true },
  { name: "export", help: "Download the conversation as Markdown", needsChat: true },
];

/** What is typed of a command or a skill, or null when the text is neither. */
export function commandQuery(text: string): string | null {
  return /^\/((?:workspace\/)?[a-z0-9-]*)$/.exec(text)?.[1] ?? null;
}

/** A skill as the menu offers it. Commands are reserved: a skill that is called like one keeps its long name. */
export interface SkillChoice {
  alias: string;
  name: string;
  description: string;
}

/** The skills of a chat that fit what is typed behind the slash. */
export function fittingSkills(items: readonly ContextItemView[], typed: string): SkillChoice[] {
  return items.flatMap((item) => {
    if (item.kind !== "skill" || !item.name || !USABLE.has(item.status)) return [];
    const long = `workspace/${item.name}`;
    const alias = COMMANDS.some((one) => one.name === item.name) || typed.includes("/") ? long : item.name;
    const fits = alias.startsWith(typed) || long.startsWith(typed);
    return fits ? [{ alias, name: item.name, description: item.description ?? "" }] : [];
  });
}

const USABLE = new Set(["ok", "truncated"]);

/** What choosing a skill writes: the agent knows its skills by name. */
export const skillText = (name: string) => `Use the skill ${name}: `;

/** A whole text that is exactly a command. */
export function asCommand(text: string): Command | null {
  const name = /^\/([a-z]+)\s*$/.exec(text)?.[1];
  return COMMANDS.find((one) => one.name === name) ?? null;
}

// Soft hyphen, zero-width and bidirectional marks, and tags: text that is not what it looks like.
const HIDDEN = /[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]|[\u{e0000}-\u{e007f}]/gu;

export function hiddenCharacters(text: string): number {
  // Joined emoji and Indic letters need their joiners.
  return (text.match(HIDDEN) ?? []).filter((char) => char !== "\u200d" && char !== "\u200c").length;
}

export function withoutHidden(text: string): string {
  return text.replace(HIDDEN, (char) => (char === "\u200d" || char === "\u200c" ? char : ""));
}

/** A pasted text so long that it is better a file. */
export function isLongPaste(text: string): boolean {
  return text.length >= 4000 || text.split("\n").length >= 40;
}
