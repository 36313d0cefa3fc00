import type { Message } from "@/chat/types";

/**
 * Names the thoughts of a turn by the call (or prompt) before them and their number since. The running step has no
 * message yet: this is what a thought is called both then and once it is stored.
 */
export class ThoughtNames {
  private after: string;
  private count = 0;

  constructor(prompt: Message | null) {
    this.after = prompt ? `m${prompt.id}` : "";
  }

  /** One that goes on from here, and leaves this one as it is. */
  copy(): ThoughtNames {
    const other = new ThoughtNames(null);
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
