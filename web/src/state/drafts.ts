/**
 * Drafts by user and chat. They are stored in the browser for 30 days. If the storage is full, they are kept in memory,
 * and the user is notified once.
 */
import type { ReferencePart } from "@/chat/types";

export interface DraftFile {
  id: string;
  name: string;
  mimeType: string;
  size: number;
}

/** The answers so far to the questions of one call. */
export interface Answering {
  /** The index of the shown question. */
  at: number;
  /** The chosen option by question. */
  chosen: Record<number, number | "other">;
  /** The text typed instead of an option, by question. */
  other: Record<number, string>;
}

export interface Draft {
  text: string;
  files: DraftFile[];
  references: ReferencePart[];
  /** Answers to open questions, by tool call. */
  answers: Record<string, Answering>;
  savedAt: number;
}

/** A comment on lines of a diff that is not yet added to the message. */
export interface OpenRemark {
  reference: ReferencePart;
  text: string;
}

export const EMPTY_DRAFT: Draft = { text: "", files: [], references: [], answers: {}, savedAt: 0 };
const PREFIX = "rookery.draft";
const MAX_AGE_MS = 30 * 24 * 3600_000;

export interface Storage {
  getItem: (key: string) => string | null;
  setItem: (key: string, value: string) => void;
  removeItem: (key: string) => void;
  key: (index: number) => string | null;
  readonly length: number;
}

export class Drafts {
  private readonly memory = new Map<string, Draft>();
  private warned = false;
  private readonly storage: Storage | null;
  private readonly now: () => number;
  private readonly onFull: () => void;

  constructor(storage: Storage | null, now: () => number, onFull: () => void) {
    this.storage = storage;
    this.now = now;
    this.onFull = onFull;
  }

  load(user: string, chat: string): Draft {
    const key = keyOf(user, chat);
    const held = this.memory.get(key);
    if (held) return held;
    try {
      const stored = this.storage?.getItem(key);
      if (!stored) return EMPTY_DRAFT;
      const draft = { ...EMPTY_DRAFT, ...(JSON.parse(stored) as Partial<Draft>) };
      if (this.now() - draft.savedAt <= MAX_AGE_MS) return draft;
      this.storage?.removeItem(key);
    } catch {
      // An unreadable draft is ignored.
    }
    return EMPTY_DRAFT;
  }

  save(user: string, chat: string, draft: Omit<Draft, "savedAt">): void {
    const key = keyOf(user, chat);
    if (isBlank(draft)) {
      this.remove(user, chat);
      return;
    }
    const whole = { ...draft, savedAt: this.now() };
    try {
      if (!this.storage) throw new Error("no storage");
      this.storage.setItem(key, JSON.stringify(whole));
      this.memory.delete(key);
    } catch {
      this.memory.set(key, whole);
      if (!this.warned) this.onFull();
      this.warned = true;
    }
  }

  /** Store the answers to one call in the draft of the chat; null deletes them. */
  saveAnswers(user: string, chat: string, call: string, answering: Answering | null): void {
    const draft = this.load(user, chat);
    const { [call]: _, ...answers } = draft.answers;
    this.save(user, chat, { ...draft, answers: answering ? { ...answers, [call]: answering } : answers });
  }

  /** Store the draft of a comment. It is separate from the message, because sending the message does not end it. */
  saveRemark(user: string, chat: string, remark: OpenRemark | null): void {
    const key = `${chat}#remark`;
    if (!remark?.text.trim()) this.remove(user, key);
    else this.save(user, key, { ...EMPTY_DRAFT, text: remark.text, references: [remark.reference] });
  }

  loadRemark(user: string, chat: string): OpenRemark | null {
    const { text, references } = this.load(user, `${chat}#remark`);
    const [reference] = references;
    return text && reference ? { text, reference } : null;
  }

  /** Store the entries of the form that the chat shows; null deletes them. `asked` identifies its questions. */
  saveForm(user: string, chat: string, asked: string, entries: unknown): void {
    const key = `${chat}#form`;
    if (entries === null) this.remove(user, key);
    else this.save(user, key, { ...EMPTY_DRAFT, text: JSON.stringify({ asked, entries }) });
  }

  /** Return the stored entries; null if there are none for these questions. */
  loadForm(user: string, chat: string, asked: string): unknown {
    try {
      const stored = JSON.parse(this.load(user, `${chat}#form`).text) as { asked?: unknown; entries?: unknown };
      return stored.asked === asked ? (stored.entries ?? null) : null;
    } catch {
      return null;
    }
  }

  remove(user: string, chat: string): void {
    const key = keyOf(user, chat);
    this.memory.delete(key);
    try {
      this.storage?.removeItem(key);
    } catch {
      // The storage is not available.
    }
  }

  /** Delete all drafts, after a sign-out. */
  clear(): void {
    this.memory.clear();
    if (!this.storage) return;
    const own: string[] = [];
    for (let at = 0; at < this.storage.length; at += 1) {
      const key = this.storage.key(at);
      if (key?.startsWith(`${PREFIX}:`)) own.push(key);
    }
    for (const key of own) this.storage.removeItem(key);
  }
}

function keyOf(user: string, chat: string): string {
  return `${PREFIX}:${user}:${chat}`;
}

export function isBlank(draft: Omit<Draft, "savedAt">): boolean {
  return (
    draft.text === "" &&
    draft.files.length === 0 &&
    draft.references.length === 0 &&
    Object.keys(draft.answers).length === 0
  );
}
