import { existsSync } from "node:fs";
import { expect, test } from "vitest";
import { TOOL_NAMES } from "@/chat/tool_texts";
import { TOOLS, toolOf } from "@/features/tools/registry";
import { unknownTool } from "./unknown_tool";

test("every tool has a module of its own name and is registered", () => {
  const folder = new URL(".", import.meta.url);
  const missing = TOOL_NAMES.filter((name) => !existsSync(new URL(`${name}.tsx`, folder)) || !TOOLS[name]);
  expect(missing).toEqual([]);
});

test("an unregistered tool shows input and output", () => {
  expect(toolOf("github__create_issue")).toBe(unknownTool);
  expect(toolOf("constructor")).toBe(unknownTool);
});
