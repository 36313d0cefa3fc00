// @vitest-environment happy-dom
import { expect, test } from "vitest";
import type { ChatView } from "@/api/types.gen";
import { newsOf } from "@/app/notifications";

const chat = (change: Partial<ChatView>) =>
  ({
    id: "a",
    title: "One",
    parent_chat_id: null,
    status: "waiting",
    snapshot_version: 1,
    needs_user: null,
    ...change,
  }) as ChatView;
const running = chat({ status: "running" });

test("ends, failures and questions of root chats are news", () => {
  expect(newsOf(running, chat({ snapshot_version: 2 }))?.event).toBe("done");
  expect(newsOf(running, chat({ status: "error", snapshot_version: 2 }))?.event).toBe("failed");
  expect(newsOf(running, chat({ needs_user: "plan", snapshot_version: 2 }))?.event).toBe("needs");
});

test("a question of a subagent is news, and its end is none", () => {
  const child = chat({ parent_chat_id: "r", root_chat_id: "r", status: "running" });
  const asks = chat({ parent_chat_id: "r", root_chat_id: "r", status: "requires_action", snapshot_version: 2 });
  expect(newsOf(child, asks)).toEqual({ event: "needs", text: "The agent “One” needs you." });
  expect(newsOf(asks, { ...asks, snapshot_version: 3 })).toBeNull();
  expect(newsOf(child, chat({ parent_chat_id: "r", status: "error", snapshot_version: 2 }))).toBeNull();
});

test("what is old, one's own stop, a child's or a first sight is none", () => {
  expect(newsOf(undefined, chat({}))).toBeNull();
  expect(newsOf(running, chat({ snapshot_version: 1 }))).toBeNull();
  expect(newsOf(chat({ status: "interrupting" }), chat({ snapshot_version: 2 }))).toBeNull();
  expect(newsOf({ ...running, parent_chat_id: "r" }, chat({ parent_chat_id: "r", snapshot_version: 2 }))).toBeNull();
});
