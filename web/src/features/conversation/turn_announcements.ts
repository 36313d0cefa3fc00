import { useEffect } from "react";
import { SentenceReader, speechOf } from "@/chat/announcements";
import { appearance } from "@/state/appearance";
import type { ChatSession } from "@/state/chat_session";
import { keys, queryClient } from "@/state/queries";
import { announce } from "@/ui/announcer";

/** Announce the start and end of turns to screen readers, and reload the chat. Renders nothing. */
export function useTurnAnnouncements(session: ChatSession): void {
  useEffect(() => {
    const reader = new SentenceReader();
    return session.store.subscribe(({ data }, { data: was }) => {
      if (data === was) return;
      const heard = appearance.getState().announce;
      const speech = speechOf(was, data, heard, reader);
      if (speech) announce(speech.text, speech.assertive);
      else if (heard === "sentence" && data.preview && data.preview !== was.preview) {
        const words = reader.next(data.preview, Date.now());
        if (words) announce(words);
      }
      if (was.loaded && was.status !== data.status) {
        void queryClient.invalidateQueries({ queryKey: keys.chat(session.id) });
      }
    });
  }, [session]);
}
