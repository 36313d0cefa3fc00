/**
 * Signed addresses for images and downloads, which the browser loads without the session key. Each is valid for one
 * address and this session, for a few minutes.
 */
import { get } from "@/api/http";
import { sessionKey } from "@/api/session_key";
import type { ItemsOfDownloadLink } from "@/api/types.gen";

// A signature is valid for at least five minutes.
const FRESH_MS = 4 * 60_000;
// An address has at most 8 KiB, and paths of workspaces may be long.
const MOST_AT_ONCE = 100;
const MOST_CHARS = 4000;
const MOST_KEPT = 1000;

interface Kept {
  url: string;
  key: string | null;
  until: number;
}

interface Asked {
  promise: Promise<string>;
  resolve: (url: string) => void;
  reject: (error: unknown) => void;
}

const kept = new Map<string, Kept>();
let waiting = new Map<string, Asked>();

/** Return the signed address if it is known and still valid, else null. */
export function freshLink(path: string): string | null {
  const found = kept.get(path);
  return found && found.key === sessionKey() && performance.now() < found.until ? found.url : null;
}

/** Return the signed address. Concurrent calls are combined into one request. */
export function signedLink(path: string): Promise<string> {
  const fresh = freshLink(path);
  if (fresh !== null) return Promise.resolve(fresh);
  const known = waiting.get(path);
  if (known) return known.promise;
  if (waiting.size === 0) setTimeout(() => void signWaiting());
  const { promise, resolve, reject } = deferred();
  waiting.set(path, { promise, resolve, reject });
  return promise;
}

async function signWaiting(): Promise<void> {
  const all = [...waiting];
  waiting = new Map();
  let batch: [string, Asked][] = [];
  let chars = 0;
  for (const one of all) {
    chars += encodeURIComponent(one[0]).length;
    if (batch.length === MOST_AT_ONCE || (batch.length > 0 && chars > MOST_CHARS)) {
      void sign(batch);
      batch = [];
      chars = encodeURIComponent(one[0]).length;
    }
    batch.push(one);
  }
  await sign(batch);
}

async function sign(asked: [string, Asked][]): Promise<void> {
  const key = sessionKey();
  try {
    const query = new URLSearchParams(asked.map(([path]) => ["path", path]));
    const { items } = await get<ItemsOfDownloadLink>(`/download-links?${query}`);
    const until = performance.now() + FRESH_MS;
    if (kept.size > MOST_KEPT) kept.clear();
    for (const { path, url } of items) kept.set(path, { url, key, until });
    for (const [path, one] of asked) one.resolve(kept.get(path)?.url ?? path);
  } catch (error) {
    for (const [, one] of asked) one.reject(error);
  }
}

function deferred(): Asked {
  let resolve: Asked["resolve"] = () => {};
  let reject: Asked["reject"] = () => {};
  const promise = new Promise<string>((onResolve, onReject) => {
    resolve = onResolve;
    reject = onReject;
  });
  return { promise, resolve, reject };
}
