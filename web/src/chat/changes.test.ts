import { expect, test } from "vitest";
import { changedFiles, changeLines, FOLD_LINES } from "@/chat/changes";
import type { Message } from "@/chat/types";

const DIFF = "--- a/x.py\n+++ b/x.py\n@@ -10,2 +10,3 @@\n same\n-old\n+new\n+-- dashes\n";

function results(...parts: object[]): Message[] {
  return [{ id: 1, content: parts.map((part) => ({ type: "tool-result", ...part })) } as unknown as Message];
}

test("edits of one file come together, and what failed changed nothing", () => {
  const messages = results(
    { tool_call_id: "1", tool_name: "edit_files", result: { files: [{ path: "x.py", diff: DIFF }] } },
    { tool_call_id: "2", tool_name: "write_file", result: { path: "x.py", diff: DIFF } },
    { tool_call_id: "3", tool_name: "edit_files", is_error: true, result: { files: [{ path: "y.py", diff: DIFF }] } },
    { tool_call_id: "4", tool_name: "execute", result: { output: DIFF } },
  );

  const files = changedFiles(messages);

  expect(files.map((one) => [one.path, one.diffs.length, one.added, one.removed])).toEqual([["x.py", 2, 4, 2]]);
});

test("lines are numbered on both sides", () => {
  const [file] = changedFiles(
    results({ tool_call_id: "1", tool_name: "write_file", result: { path: "x", diff: DIFF } }),
  );

  const lines = changeLines(file ? [file] : [], new Set());

  expect(lines.map((line) => line.kind)).toEqual(["file", "head", "same", "removed", "added", "added"]);
  expect(lines.slice(2).map((line) => ("before" in line ? [line.before, line.after] : []))).toEqual([
    [10, 10],
    [11, null],
    [null, 11],
    [null, 12],
  ]);
});

test("long changes start folded and short ones open", () => {
  const long = { path: "long", diffs: [DIFF], added: FOLD_LINES, removed: 1 };
  const short = { path: "short", diffs: [DIFF], added: 2, removed: 1 };

  expect(changeLines([long, short], new Set()).map((line) => line.kind === "file" && line.isOpen)).toContain(false);
  expect(changeLines([long], new Set(["long"])).length).toBeGreaterThan(1);
  expect(changeLines([short], new Set(["short"])).length).toBe(1);
});
