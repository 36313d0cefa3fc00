import type { Message } from "@/chat/types";

/**
 * Ids for the reasoning blocks of a turn: the preceding call (or user message), and a number. The id is the same in the
 * running step, which has no message yet, and in the stored message.
 */
export class ReasoningIds {
  private after: string;
  private count = 0;

  constructor(prompt: Message | null) {
    this.after = prompt ? `m${prompt.id}` : "";
  }

  /** Return a copy that continues from here without changing this one. */
  copy(): ReasoningIds {
    const other = new ReasoningIds(null);
    [other.after, other.count] = [this.after, this.count];
    return other;
  }

  call(id: string): void {
    this.after = id;
    this.count = 0;
  }

  next(): string {
    this.count += 1;
    return `t:${this.after}:${this.count}`;
  }
}
