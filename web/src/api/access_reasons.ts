/**
 * Reasons that an administrator gave for reading other users' chats. They are kept in memory only, so after a reload
 * the reason has to be given again.
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

/** Drop all reasons, because another user may sign in next. */
export function forgetReasons(): void {
  reasons.clear();
}

/** Return the header with the reason for requests to this path; empty if no reason was given. */
export function reasonHeaders(path: string): Record<string, string> {
  const chat = /^\/chats\/([^/?]+)/.exec(path)?.[1];
  return chat === undefined ? {} : reasonOf(decodeURIComponent(chat));
}

/** Return the same header for data of a chat under another path, such as its files. */
export function reasonOf(chat: string): Record<string, string> {
  const reason = reasons.get(chat);
  return reason === undefined ? {} : { [HEADER]: bytes(reason) };
}

/** Encode a header value as UTF-8 bytes: browsers refuse characters above U+00FF in headers. */
function bytes(text: string): string {
  return String.fromCharCode(...new TextEncoder().encode(text));
}
