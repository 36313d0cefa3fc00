import { expect, test } from "vitest";
import type { ContextItemView } from "@/api/types.gen";
import { problemOf, titleOf } from "@/chat/workspace_context";

const item = (more: Partial<ContextItemView>): ContextItemView => ({
  kind: "instruction_file",
  source: "/home/agent/project/AGENTS.md",
  name: null,
  description: null,
  size: 10,
  status: "ok",
  error: null,
  tools: null,
  ...more,
});

test("things are called by what people know them by", () => {
  expect(titleOf(item({}))).toBe("AGENTS.md");
  expect(titleOf(item({ kind: "skill", source: "/p/skills/release/SKILL.md" }))).toBe("release");
  expect(titleOf(item({ kind: "mcp_server", name: "github", tools: ["a", "b"] }))).toBe("github, 2 tools");
  expect(titleOf(item({ kind: "mcp_server", name: "github", tools: ["a"] }))).toBe("github, 1 tool");
});

test("problems are said in the server's words, or in ours", () => {
  expect(problemOf(item({}))).toBeNull();
  expect(problemOf(item({ status: "invalid", error: "There is no name." }))).toBe("There is no name.");
  expect(problemOf(item({ status: "oversize" }))).toBe("Too large: it is not used.");
  expect(problemOf(item({ status: "new" }))).toBe("new");
});
