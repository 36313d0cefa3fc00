/**
 * Why an administrator reads somebody else's chat. Kept in memory only: a reason is given for one visit, and after a
 * reload it is asked for again.
 */
const HEADER = "Rookery-Break-Glass";
export const MIN_REASON = 10;
export const MAX_REASON = 200;

const reasons = new Map<string, string>();

export function giveReason(chat: string, reason: string): void {
  reasons.set(chat, reason.trim());
}

export function hasReason(chat: string): boolean {
  return reasons.has(chat);
}

/** Somebody else may sign in here next. */
export function forgetReasons(): void {
  reasons.clear();
}

/** What a request that reads this address says about why; nothing for chats that need no reason. */
export function reasonHeaders(path: string): Record<string, string> {
  const chat = /^\/chats\/([^/?]+)/.exec(path)?.[1];
  return chat === undefined ? {} : reasonOf(decodeURIComponent(chat));
}

/** The same for what belongs to a chat and has an address of its own, such as its files. */
export function reasonOf(chat: string): Record<string, string> {
  const reason = reasons.get(chat);
  return reason === undefined ? {} : { [HEADER]: bytes(reason) };
}

/** Headers carry bytes, and browsers refuse letters beyond the first 256: these are the bytes of UTF-8. */
function bytes(text: string): string {
  return String.fromCharCode(...new TextEncoder().encode(text));
}
