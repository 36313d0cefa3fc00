/** Earlier messages in the message box: Up shows older ones, Down newer ones and finally the empty box. */
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
    /** Return the next older message; null if there is none. */
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
    /** Stop browsing, because the user types or has sent a message. */
    leave(sent = false): void {
      at.current = -1;
      if (sent) prompts.current = null;
    },
  };
}
