/** Where a file of a chat is read from: its address, or its bytes where reading it takes a reason. */
import { useEffect, useState } from "react";
import { fetchFile, fileAddress } from "@/api/files";
import { hasReason } from "@/api/reasons";

/** The address for a picture; null until its bytes are here. `round` asks again. */
export function useFileSource(id: string | null, chat: string, round = 0): { src: string | null; error: unknown } {
  const [loaded, setLoaded] = useState<{ src: string | null; error: unknown }>({ src: null, error: null });
  const needsReason = id !== null && hasReason(chat);
  // biome-ignore lint/correctness/useExhaustiveDependencies: another round is another try
  useEffect(() => {
    if (!needsReason || id === null) return;
    const abort = new AbortController();
    let made: string | null = null;
    fetchFile(id, chat, abort.signal)
      .then((blob) => {
        if (abort.signal.aborted) return;
        made = URL.createObjectURL(blob);
        setLoaded({ src: made, error: null });
      })
      .catch((error: unknown) => !abort.signal.aborted && setLoaded({ src: null, error }));
    return () => {
      abort.abort();
      if (made) URL.revokeObjectURL(made);
    };
  }, [id, chat, needsReason, round]);
  if (needsReason) return loaded;
  return { src: id === null ? null : fileAddress(id), error: null };
}

/** Hand a file over, for links that would have to give a reason. */
export async function downloadFile(id: string, chat: string, name: string): Promise<void> {
  const src = URL.createObjectURL(await fetchFile(id, chat));
  const link = document.createElement("a");
  link.href = src;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(src), 10_000);
}
