/** Sent messages that the server has not confirmed, kept in the browser so that a reload does not lose them. */
import type { PendingSend } from "@/chat/pending_operations";

// Deleted with the drafts after a sign-out.
const PREFIX = "rookery.draft:outbox";
const MAX_AGE_MS = 24 * 3600_000;

export class Outbox {
  private readonly prefix: string;

  constructor(userId: string, chatId: string) {
    this.prefix = `${PREFIX}:${userId}:${chatId}:`;
  }

  /** Return the kept messages in their order. Old ones count as failed, because they may not be wanted any more. */
  load(now: number): PendingSend[] {
    try {
      return Object.keys(localStorage)
        .filter((key) => key.startsWith(this.prefix))
        .map((key) => JSON.parse(localStorage.getItem(key) ?? "") as PendingSend)
        .sort((a, b) => a.at.localeCompare(b.at))
        .map((op) =>
          now - Date.parse(op.at) <= MAX_AGE_MS ? op : { ...op, failed: "It could not be sent for more than a day." },
        );
    } catch {
      return [];
    }
  }

  put(op: PendingSend): void {
    try {
      localStorage.setItem(this.prefix + op.id, JSON.stringify(op));
    } catch {
      // Without storage, the message is kept in this tab only.
    }
  }

  remove(id: string): void {
    // Without storage, there is nothing to remove.
    globalThis.localStorage?.removeItem(this.prefix + id);
  }
}
