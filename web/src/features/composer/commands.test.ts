import { expect, test } from "vitest";
import type { ContextItemView } from "@/api/types.gen";
import {
  asCommand,
  commandQuery,
  fittingSkills,
  hiddenCharacters,
  isLongPaste,
  withoutHidden,
} from "@/features/composer/commands";

test("a slash at the very start asks for a command, a path does not", () => {
  expect(commandQuery("/co")).toBe("co");
  expect(commandQuery("/")).toBe("");
  expect(commandQuery("/etc/passwd")).toBeNull();
  expect(commandQuery("see /compact")).toBeNull();
  expect(commandQuery("/make-release-2")).toBe("make-release-2");
  expect(commandQuery("/workspace/plan")).toBe("workspace/plan");
  expect(asCommand("/compact ")?.name).toBe("compact");
  expect(asCommand("/unknown")).toBeNull();
});

test("characters that cannot be seen are counted and removed, joiners of emoji stay", () => {
  expect(hiddenCharacters("a\u202eb\u200bc")).toBe(2);
  expect(withoutHidden("a\u202eb\u200bc")).toBe("abc");
  expect(hiddenCharacters("👩\u200d💻")).toBe(0);
});

test("long pastes become files", () => {
  expect(isLongPaste("x".repeat(4000))).toBe(true);
  expect(isLongPaste("line\n".repeat(40))).toBe(true);
  expect(isLongPaste("short")).toBe(false);
});

test("skills are offered by name, and by their long one where a command has it", () => {
  const item = (name: string, more: Partial<ContextItemView> = {}): ContextItemView => ({
    kind: "skill",
    source: `/p/skills/${name}/SKILL.md`,
    name,
    description: "does it",
    size: 1,
    status: "ok",
    error: null,
    tools: null,
    ...more,
  });
  const items = [
    item("release"),
    item("plan"),
    item("broken", { status: "invalid" }),
    item("AGENTS.md", { kind: "instruction_file" }),
  ];
  expect(fittingSkills(items, "").map((one) => one.alias)).toEqual(["release", "workspace/plan"]);
  expect(fittingSkills(items, "re").map((one) => one.alias)).toEqual(["release"]);
  expect(fittingSkills(items, "workspace/").map((one) => one.alias)).toEqual(["workspace/release", "workspace/plan"]);
  expect(fittingSkills(items, "x")).toEqual([]);
});
