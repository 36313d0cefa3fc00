/** Earlier prompts in an empty box: Up goes back, Down past the newest restores what was there. */
import { useRef } from "react";
import { listPrompts } from "@/api/chats";

export function useHistory(chatId: string | null) {
  const prompts = useRef<string[] | null>(null);
  const at = useRef(-1);

  async function load(): Promise<string[]> {
    if (!chatId) return [];
    prompts.current ??= (await listPrompts(chatId).catch(() => ({ items: [] }))).items.map((one) => one.text);
    return prompts.current;
  }

  return {
    get isBrowsing() {
      return at.current >= 0;
    },
    /** The prompt before the one that is shown; null when there is none. */
    async older(): Promise<string | null> {
      const all = await load();
      const next = all[at.current + 1];
      if (next === undefined) return null;
      at.current += 1;
      return next;
    },
    newer(): string | null {
      if (at.current < 0) return null;
      at.current -= 1;
      return at.current < 0 ? "" : (prompts.current?.[at.current] ?? "");
    },
    /** A new prompt was sent, or typing began. */
    leave(sent = false): void {
      at.current = -1;
      if (sent) prompts.current = null;
    },
  };
}
