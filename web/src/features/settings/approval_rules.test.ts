import { expect, test } from "vitest";
import { readRules, writeRules } from "./approval_rules";

test("rules come back from the editor as they went in", () => {
  const stored = [
    { tool: "execute", action: "deny" as const, match: { command: "rm *", cwd: "/srv*" }, reason: "Never." },
    { tool: "read_*", action: "allow" as const, match: {}, reason: "" },
  ];

  expect(writeRules(readRules(stored))).toEqual(stored);
});

test("a rule without an argument matches every call of its tool", () => {
  const [rule] = readRules([{ tool: " execute ", action: "ask" }]);

  expect(rule && writeRules([{ ...rule, pattern: "left over" }])).toEqual([
    { tool: "execute", action: "ask", match: {}, reason: "" },
  ]);
});
