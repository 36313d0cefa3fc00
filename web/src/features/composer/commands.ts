/** Slash commands at the beginning of a message. */
import type { ContextItemView } from "@/api/types.gen";

export interface Command {
  name: string;
  help: string;
  /** Whether the command needs an existing chat. */
  needsChat: boolean;
}

export const COMMANDS: Command[] = [
  { name: "compact", help: "Summarize the conversation to make room", needsChat: true },
  { name: "plan", help: "Turn plan mode on or off", needsChat: false },
  { name: "mode", help: "Switch between Ask, Auto and Read only", needsChat: false },
  { name: "model", help: "Choose the model", needsChat: false },
  { name: "effort", help: "Choose how much to think", needsChat: false },
  { name: "stop", help: "Stop the agent", needsChat: true },
  { name: "retry", help: "Try the failed turn again", needsChat: true },
  { name: "title", help: "Suggest a title", needsChat: true },
  { name: "export", help: "Download the conversation as Markdown", needsChat: true },
  { name: "debug", help: "Show what the model was sent", needsChat: true },
];

/** Return the partial name of a command or skill, or null if the text is neither. */
export function commandQuery(text: string): string | null {
  return /^\/((?:workspace\/)?[a-z0-9-]*)$/.exec(text)?.[1] ?? null;
}

/** A skill in the menu. A skill with the name of a command is listed under its full name. */
export interface SkillChoice {
  alias: string;
  name: string;
  description: string;
}

/** Return the skills of a chat that match the text after the slash. */
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

/** Return the text that choosing a skill inserts. */
export const skillText = (name: string) => `Use the skill ${name}: `;

/** Return the command if the whole text is one. */
export function asCommand(text: string): Command | null {
  const name = /^\/([a-z]+)\s*$/.exec(text)?.[1];
  return COMMANDS.find((one) => one.name === name) ?? null;
}

// Invisible characters: soft hyphen, zero-width and bidirectional marks, and tags.
const HIDDEN = /[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]|[\u{e0000}-\u{e007f}]/gu;

export function hiddenCharacters(text: string): number {
  // Joiners in emoji and Indic scripts are needed, and are kept.
  return (text.match(HIDDEN) ?? []).filter((char) => char !== "\u200d" && char !== "\u200c").length;
}

export function withoutHidden(text: string): string {
  return text.replace(HIDDEN, (char) => (char === "\u200d" || char === "\u200c" ? char : ""));
}

/** Return whether a pasted text is long enough to be attached as a file. */
export function isLongPaste(text: string): boolean {
  return text.length >= 4000 || text.split("\n").length >= 40;
}
