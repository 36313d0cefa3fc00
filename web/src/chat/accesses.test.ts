import { expect, test } from "vitest";
import type { Access } from "@/api/types.gen";
import { visitsOf } from "@/chat/accesses";

const eve = { id: "u1", username: "eve", name: "Eve" } as NonNullable<Access["user"]>;
const access = (at: string, reason: string, user: Access["user"] = eve): Access => ({
  at,
  user,
  chat_id: "c1",
  reason,
});

test("many requests for one reason are one visit, told with the newest time", () => {
  const visits = visitsOf([
    access("2026-01-03T00:00:00Z", "another case"),
    access("2026-01-02T00:00:00Z", "the first case"),
    access("2026-01-01T00:00:00Z", "the first case"),
    access("2026-01-01T00:00:00Z", "the first case", null),
  ]);

  expect(visits).toEqual([
    { who: "Eve", reason: "another case", at: "2026-01-03T00:00:00Z", requests: 1 },
    { who: "Eve", reason: "the first case", at: "2026-01-02T00:00:00Z", requests: 2 },
    { who: "A deleted account", reason: "the first case", at: "2026-01-01T00:00:00Z", requests: 1 },
  ]);
});
