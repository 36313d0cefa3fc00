import { expect, test } from "vitest";
import { asCommand, commandQuery, hiddenCharacters, isLongPaste, withoutHidden } from "@/features/composer/commands";

test("a slash at the very start asks for a command, a path does not", () => {
  expect(commandQuery("/co")).toBe("co");
  expect(commandQuery("/")).toBe("");
  expect(commandQuery("/etc/passwd")).toBeNull();
  expect(commandQuery("see /compact")).toBeNull();
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
