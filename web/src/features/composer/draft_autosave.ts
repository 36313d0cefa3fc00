import { useEffect, useRef } from "react";
import { drafts } from "@/features/composer/draft_store";
import type { BoxContent } from "@/features/composer/submission";
import type { TypedText } from "@/features/composer/typed_text";
import { EMPTY_DRAFT } from "@/state/drafts";

// Not with every key: writing to the storage blocks the page.
const DRAFT_MS = 300;

interface Options {
  userId: string;
  draftKey: string;
  typed: TypedText;
  files: readonly unknown[];
  current: () => BoxContent;
  /** Whether the box holds an edited message, which is not the draft. */
  isPaused: () => boolean;
}

/** Save the draft shortly after each change of its text or files, and when the page is left. */
export function useDraftAutosave({ userId, draftKey, typed, files, current, isPaused }: Options): void {
  const saving = useRef<{ save: () => void; timer: ReturnType<typeof setTimeout> | undefined }>(null);
  const newest = useRef({ current, isPaused });
  newest.current = { current, isPaused };
  useEffect(() => {
    const save = () => {
      clearTimeout(own.timer);
      own.timer = undefined;
      if (newest.current.isPaused()) return;
      drafts.save(userId, draftKey, {
        ...EMPTY_DRAFT,
        // Answers to a question are typed in another form and are kept.
        answers: drafts.load(userId, draftKey).answers,
        ...newest.current.current(),
      });
    };
    const own: NonNullable<typeof saving.current> = { save, timer: undefined };
    saving.current = own;
    const unsubscribe = typed.store.subscribe(() => {
      own.timer ??= setTimeout(save, DRAFT_MS);
    });
    window.addEventListener("pagehide", save);
    return () => {
      unsubscribe();
      window.removeEventListener("pagehide", save);
      save();
    };
  }, [typed, userId, draftKey]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: runs when the files change
  useEffect(() => {
    const own = saving.current;
    if (own) own.timer ??= setTimeout(own.save, DRAFT_MS);
  }, [files]);
}
