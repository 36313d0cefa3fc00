/** Files of a draft. They are uploaded when they are chosen, and sent by their id. */
import { useCallback, useRef, useState } from "react";
import { ApiError, sentence } from "@/api/errors";
import { type Upload, upload } from "@/api/files";
import type { DraftFile } from "@/state/drafts";

const MAX_BYTES = 10 * 1024 * 1024;
export const MAX_FILES = 50;

export interface Attachment {
  key: string;
  name: string;
  mimeType: string;
  size: number;
  progress: number;
  /** Set when the upload is complete. */
  id: string | null;
  error: string | null;
  /** The text, if the file was made from a pasted text. */
  pasted?: string;
}

let last = 0;

export function useAttachments(initial: readonly DraftFile[]) {
  const [items, setItems] = useState<Attachment[]>(() => initial.map(fromDraft));
  const uploads = useRef(new Map<string, Upload>());
  // A ref, because several files may be added before the next render.
  const count = useRef(0);
  count.current = items.length;

  const change = useCallback((key: string, part: Partial<Attachment>) => {
    setItems((all) => all.map((one) => (one.key === key ? { ...one, ...part } : one)));
  }, []);

  const add = useCallback(
    (file: Blob, name: string, pasted?: string) => {
      last += 1;
      const key = `a${last}`;
      const item: Attachment = {
        key,
        name,
        mimeType: file.type || "application/octet-stream",
        size: file.size,
        progress: 0,
        id: null,
        error: null,
        ...(pasted === undefined ? {} : { pasted }),
      };
      const refuse = (error: string) => setItems((all) => [...all, { ...item, error }]);
      if (file.size > MAX_BYTES) return refuse(`${name} is larger than 10 MB.`);
      count.current += 1;
      if (count.current > MAX_FILES)
        return refuse(`${name} is one too many: a message has at most ${MAX_FILES} files.`);
      setItems((all) => [...all, item]);
      const running = upload(file, name, (progress) => change(key, { progress }));
      uploads.current.set(key, running);
      running.done
        .then((stored) => change(key, { id: stored.id, progress: 1, mimeType: stored.mime_type, name: stored.name }))
        .catch((error: unknown) => {
          if (error instanceof DOMException && error.name === "AbortError") return;
          change(key, { error: refusalOf(error) });
        })
        .finally(() => uploads.current.delete(key));
    },
    [change],
  );

  const remove = useCallback((key: string) => {
    uploads.current.get(key)?.cancel();
    setItems((all) => all.filter((one) => one.key !== key));
  }, []);

  const set = useCallback((files: readonly DraftFile[]) => setItems(files.map(fromDraft)), []);

  /** Restore the files of a refused message, before files that were chosen meanwhile. */
  const bringBack = useCallback(
    (files: readonly DraftFile[]) => setItems((all) => [...files.map(fromDraft), ...all]),
    [],
  );

  /** Wait until all uploads have ended. */
  const settled = useCallback(async () => {
    await Promise.allSettled([...uploads.current.values()].map((one) => one.done));
  }, []);

  return { items, add, remove, set, bringBack, settled };
}

/** Return the error message for a refused file, without the field name. */
function refusalOf(error: unknown): string {
  return (error instanceof ApiError ? error.fields[0]?.message : undefined) ?? sentence(error);
}

function fromDraft(file: DraftFile): Attachment {
  last += 1;
  return {
    key: `a${last}`,
    name: file.name,
    mimeType: file.mimeType,
    size: file.size,
    progress: 1,
    id: file.id,
    error: null,
  };
}

export function toDraft(items: readonly Attachment[]): DraftFile[] {
  return items.flatMap((one) =>
    one.id ? [{ id: one.id, name: one.name, mimeType: one.mimeType, size: one.size }] : [],
  );
}
