import { expect, test } from "vitest";
import type { Action } from "@/chat/types";
import { permits } from "@/features/tools/approval_card";

const action: Action = {
  type: "action_required",
  kind: "approval",
  deadline_at: null,
  tool_calls: [
    {
      tool_call_id: "1",
      tool_name: "execute",
      args: { command: "git push origin" },
      always: { chat: { command: "git push*" }, user: { command: "git push origin" } },
    },
    { tool_call_id: "2", tool_name: "execute", args: {}, always: { chat: { command: "git push*" }, user: null } },
    { tool_call_id: "3", tool_name: "list_templates", args: {}, always: { chat: {}, user: null } },
    { tool_call_id: "4", tool_name: "execute", args: {} },
  ],
};

test("each scope says which calls it would permit, and each of them once", () => {
  expect(permits(action, "chat")).toEqual(["execute: command git push*", "list templates: anything"]);
  expect(permits(action, "user")).toEqual(["execute: command git push origin"]);
});

test("a question without patterns offers no always", () => {
  const plain = { ...action, tool_calls: action.tool_calls.slice(3) };
  expect(permits(plain, "chat")).toEqual([]);
  expect(permits(plain, "user")).toEqual([]);
});
