import { useEffect, useMemo, useRef } from "react";
import { drafts } from "@/features/composer/draft_store";
import type { OpenRemark } from "@/state/drafts";
import { useSelf } from "@/state/login_session";

const SAVE_MS = 300;

/** The draft of a comment on a chat's changes. It survives scrolling, other tabs of the panel and a reload. */
export interface CommentDraft {
  /** Return the stored draft; null if there is none. */
  load: () => OpenRemark | null;
  /** Store the draft; null deletes it. */
  keep: (remark: OpenRemark | null) => void;
}

export function useKeptRemark(chatId: string): CommentDraft {
  const user = useSelf().id;
  const waiting = useRef<{ remark: OpenRemark; timer: ReturnType<typeof setTimeout> } | null>(null);
  const kept = useMemo((): CommentDraft & { flush: () => void } => {
    const flush = () => {
      if (!waiting.current) return;
      clearTimeout(waiting.current.timer);
      drafts.saveRemark(user, chatId, waiting.current.remark);
      waiting.current = null;
    };
    return {
      flush,
      load: () => waiting.current?.remark ?? drafts.loadRemark(user, chatId),
      keep: (remark) => {
        if (waiting.current) clearTimeout(waiting.current.timer);
        waiting.current = null;
        if (remark) waiting.current = { remark, timer: setTimeout(flush, SAVE_MS) };
        else drafts.saveRemark(user, chatId, null);
      },
    };
  }, [user, chatId]);
  useEffect(() => {
    window.addEventListener("pagehide", kept.flush);
    return () => {
      window.removeEventListener("pagehide", kept.flush);
      kept.flush();
    };
  }, [kept]);
  return kept;
}
