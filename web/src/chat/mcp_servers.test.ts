import { expect, test } from "vitest";
import type { WorkspaceMcpServerView } from "@/api/types.gen";
import { isWaiting, lacksLogin, statusOf, targetOf } from "@/chat/mcp_servers";

const server = (given: Partial<WorkspaceMcpServerView> = {}): WorkspaceMcpServerView => ({
  name: "docs",
  hash: "a".repeat(64),
  state: "asked",
  folder: "/p",
  command: "npx",
  args: [],
  env: [],
  url: null,
  type: null,
  headers: [],
  server: null,
  login: null,
  running: false,
  error: null,
  tools: [],
  decided_at: null,
  ...given,
});

test("a command is shown as a shell would take it", () => {
  expect(targetOf(server({ args: ["-y", "docs-mcp"] }))).toBe("npx -y docs-mcp");
  expect(targetOf(server({ args: ["a b", "", "it's", "x;y"] }))).toBe(`npx 'a b' '' 'it'"'"'s' 'x;y'`);
  expect(targetOf(server({ command: "\\u202enpx" }))).toBe("\\u202enpx");
  expect(targetOf(server({ command: null, url: "https://docs.example/mcp?a=b" }))).toBe("https://docs.example/mcp?a=b");
});

test("every state has its words", () => {
  expect(isWaiting(server())).toBe(true);
  expect(isWaiting(server({ state: "changed" }))).toBe(true);
  expect(isWaiting(server({ state: "denied" }))).toBe(false);
  expect(statusOf(server({ state: "agreed", running: true, tools: ["a"] }))).toBe("Running, 1 tool");
  expect(statusOf(server({ state: "agreed" }))).toBe("Allowed, not running");
  expect(statusOf(server({ state: "agreed", error: "It ended." }))).toBe("It ended.");
  expect(statusOf(server({ state: "denied" }))).toBe("Denied");
  const remote = { state: "agreed", running: true, command: null, url: "https://docs.example/mcp" } as const;
  expect(statusOf(server({ ...remote, tools: ["a", "b"] }))).toBe("In use, 2 tools");
  expect(statusOf(server({ ...remote, login: "none" }))).toBe("Allowed, needs your login");
  expect(lacksLogin(server({ ...remote, login: "connected" }))).toBe(false);
});
