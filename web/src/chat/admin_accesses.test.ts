import { expect, test } from "vitest";
import type { Access } from "@/api/types.gen";
import { noticeOf, visitsOf } from "./admin_accesses";

const eve = { id: "u1", username: "eve", name: "Eve" } as NonNullable<Access["user"]>;
const access = (at: string, reason: string, user: Access["user"] = eve): Access => ({
  at,
  kind: "read",
  user,
  chat_id: "c1",
  reason,
});

test("a reset of the password is told as one", () => {
  const reset: Access = { at: "2026-01-03T00:00:00Z", kind: "password_reset", user: eve, chat_id: null, reason: null };

  expect(visitsOf([reset])).toEqual([
    { who: "Eve", reason: "Reset your password.", chat: null, at: "2026-01-03T00:00:00Z", requests: 1 },
  ]);
});

test("a notice names what happened since the last one", () => {
  const notice = { reads: 0, password_resets: 0, last_at: "2026-01-03T00:00:00Z", through: 7 };

  expect(noticeOf({ ...notice, password_resets: 1 })).toBe("An administrator has reset your password.");
  expect(noticeOf({ ...notice, reads: 3 })).toBe("An administrator has read your chats.");
  expect(noticeOf({ ...notice, reads: 1, password_resets: 2 })).toBe(
    "An administrator has reset your password and read your chats.",
  );
});

test("many requests for one reason are one visit, told with the newest time", () => {
  const visits = visitsOf([
    access("2026-01-03T00:00:00Z", "another case"),
    access("2026-01-02T00:00:00Z", "the first case"),
    access("2026-01-01T00:00:00Z", "the first case"),
    access("2026-01-01T00:00:00Z", "the first case", null),
  ]);

  expect(visits).toEqual([
    { who: "Eve", reason: "another case", chat: "c1", at: "2026-01-03T00:00:00Z", requests: 1 },
    { who: "Eve", reason: "the first case", chat: "c1", at: "2026-01-02T00:00:00Z", requests: 2 },
    { who: "A deleted account", reason: "the first case", chat: "c1", at: "2026-01-01T00:00:00Z", requests: 1 },
  ]);
});
