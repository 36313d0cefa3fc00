import { expect, test } from "vitest";
import type { Message } from "@/chat/types";
import { changedFiles, knownPaths, lastTurn } from "./edited_files";

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

  expect(files.map((one) => [one.path, one.added, one.removed])).toEqual([["x.py", 4, 2]]);
  expect(files[0]?.lines.map((line) => line.kind).slice(0, 5)).toEqual(["head", "same", "removed", "added", "added"]);
});

test("a turn begins with the last prompt", () => {
  const messages = ["user", "assistant", "user", "tool"].map((role, id) => ({ id, role }) as Message);

  expect(lastTurn(messages).map((one) => one.id)).toEqual([2, 3]);
});

test("files that calls were about are known, the newest first", () => {
  const call = (id: number, args: object) =>
    ({ id, content: [{ type: "tool-call", tool_call_id: String(id), args }] }) as unknown as Message;

  const paths = knownPaths([
    call(1, { path: "a.py" }),
    call(2, { files: [{ path: "b.py" }, { path: "a.py" }] }),
    call(3, { command: "ls" }),
  ]);

  expect(paths).toEqual(["b.py", "a.py"]);
});
