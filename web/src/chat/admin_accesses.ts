import type { Access, AccessNotice } from "@/api/types.gen";

export interface Visit {
  who: string;
  reason: string;
  /** The chat that was read; null for accesses to the account. */
  chat: string | null;
  at: string;
  requests: number;
}

/** Group accesses by user, chat and reason, because one visit causes many requests. Each group has its newest time. */
export function visitsOf(accesses: readonly Access[]): Visit[] {
  const visits = new Map<string, Visit>();
  for (const { at, user, kind, chat_id, reason: said } of accesses) {
    const reason = kind === "password_reset" ? "Reset your password." : (said ?? "");
    const key = JSON.stringify([user?.id, reason, chat_id]);
    const known = visits.get(key);
    if (known) known.requests += 1;
    else
      visits.set(key, {
        who: user?.name || user?.username || "A deleted account",
        reason,
        chat: chat_id,
        at,
        requests: 1,
      });
  }
  return [...visits.values()];
}

/** Return a sentence about the accesses since the last notice was dismissed. */
export function noticeOf(notice: AccessNotice): string {
  const did = [notice.password_resets > 0 && "reset your password", notice.reads > 0 && "read your chats"];
  return `An administrator has ${did.filter(Boolean).join(" and ")}.`;
}
