/** Slash commands at the beginning of a message. */
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

/** What is typed of a command, or null when the text is none. */
export function commandQuery(text: string): string | null {
  return /^\/([a-z]*)$/.exec(text)?.[1] ?? null;
}

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
