/** Sources for files of a chat: a signed URL, or downloaded bytes if the request needs a reason. */
import { useEffect, useState } from "react";
import { hasReason } from "@/api/access_reasons";
import { fetchFile, fileAddress } from "@/api/files";
import { freshLink, signedLink } from "@/api/signed_links";

interface Source {
  src: string | null;
  error: unknown;
}

const NOT_YET: Source = { src: null, error: null };

/** Return the URL of an image; null until it is known. A new `round` requests it again. */
export function useFileSource(id: string | null, chat: string, round = 0): Source {
  const [loaded, setLoaded] = useState<Source>(NOT_YET);
  const needsReason = id !== null && hasReason(chat);
  // biome-ignore lint/correctness/useExhaustiveDependencies: a new round requests it again
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
  const signed = useSignedSource(id === null || needsReason ? null : fileAddress(id), round);
  return needsReason ? loaded : signed;
}

/** Return the signed URL of a path; null until it is signed. A new `round` requests it again. */
export function useSignedSource(path: string | null, round = 0): Source {
  const [signed, setSigned] = useState<Source & { path: string | null; round: number }>({ ...NOT_YET, path, round });
  useEffect(() => {
    if (path === null) return;
    let isGone = false;
    signedLink(path).then(
      (src) => !isGone && setSigned({ src, error: null, path, round }),
      (error: unknown) => !isGone && setSigned({ src: null, error, path, round }),
    );
    return () => {
      isGone = true;
    };
  }, [path, round]);
  if (path === null) return NOT_YET;
  if (signed.path === path && signed.round === round && (signed.src ?? signed.error)) return signed;
  return { src: freshLink(path), error: null };
}

/** Return whether a URL failed because its signature expired: images are loaded when they become visible. */
export function isStale(path: string, src: string): boolean {
  return !src.startsWith("blob:") && freshLink(path) !== src;
}

/** Download a file, for requests that need a reason. */
export async function downloadFile(id: string, chat: string, name: string): Promise<void> {
  const src = URL.createObjectURL(await fetchFile(id, chat));
  save(src, name);
  setTimeout(() => URL.revokeObjectURL(src), 10_000);
}

/** Download from a path of this server. */
export async function downloadAddress(path: string, name: string): Promise<void> {
  save(await signedLink(path), name);
}

function save(address: string, name: string): void {
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
}
