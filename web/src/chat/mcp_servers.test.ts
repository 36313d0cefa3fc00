import { expect, test } from "vitest";
import type { WorkspaceMcpServerView } from "@/api/types.gen";
import { commandOf, isWaiting, statusOf } from "@/chat/mcp_servers";

const server = (given: Partial<WorkspaceMcpServerView> = {}): WorkspaceMcpServerView => ({
  name: "docs",
  hash: "a".repeat(64),
  state: "asked",
  folder: "/p",
  command: "npx",
  args: [],
  env: [],
  running: false,
  error: null,
  tools: [],
  decided_at: null,
  ...given,
});

test("a command is shown as a shell would take it", () => {
  expect(commandOf(server({ args: ["-y", "docs-mcp"] }))).toBe("npx -y docs-mcp");
  expect(commandOf(server({ args: ["a b", "", "it's", "x;y"] }))).toBe(`npx 'a b' '' 'it'"'"'s' 'x;y'`);
  expect(commandOf(server({ command: "\\u202enpx" }))).toBe("\\u202enpx");
});

test("every state has its words", () => {
  expect(isWaiting(server())).toBe(true);
  expect(isWaiting(server({ state: "changed" }))).toBe(true);
  expect(isWaiting(server({ state: "denied" }))).toBe(false);
  expect(statusOf(server({ state: "agreed", running: true, tools: ["a"] }))).toBe("Running, 1 tool");
  expect(statusOf(server({ state: "agreed" }))).toBe("Allowed, not running");
  expect(statusOf(server({ state: "agreed", error: "It ended." }))).toBe("It ended.");
  expect(statusOf(server({ state: "denied" }))).toBe("Denied");
});
