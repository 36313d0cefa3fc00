import { expect, test } from "vitest";
import { filePlace, foldersTo, keptFile } from "./file_paths";

test.each([
  ["src/a.py:12", "src/a.py", 12],
  ["src/a.py:12-20", "src/a.py", 12],
  ["src/a.py:12:5", "src/a.py", 12],
  ["./web/src/main.tsx", "web/src/main.tsx", null],
  ["/home/agent/project/a.py", "/home/agent/project/a.py", null],
  ["main.py", "main.py", null],
  ["Makefile", "Makefile", null],
  ["upload.log:3", "upload.log", 3],
])("%s names a file", (text, path, line) => {
  expect(filePlace(text)).toEqual({ path, line });
});

test.each([
  "npm install",
  "console.log",
  "os.path",
  "1.2.3",
  "src/",
  "and/or",
  "https://example.org/a.py",
  "../../etc/passwd.txt",
  "~/notes.md",
  "f(a.py)",
  "javascript:alert(1)",
  "",
  `${"a".repeat(400)}.py`,
])("%s names none", (text) => {
  expect(filePlace(text)).toBeNull();
});

test("folders lead to a file from the outermost on", () => {
  expect(foldersTo("src/api/a.ts")).toEqual(["src/", "src/api/"]);
  expect(foldersTo("a.ts")).toEqual([]);
});

test("a shortened result says where all of it is", () => {
  expect(keptFile({ output: "a", truncated: { omitted_bytes: 3, file: "/h/.rookery/results/c" } })).toBe(
    "/h/.rookery/results/c",
  );
  expect(keptFile({ truncated: { omitted_bytes: 3 } })).toBeNull();
  expect(keptFile({ truncated: true })).toBeNull();
  expect(keptFile("text")).toBeNull();
  const cut = "a\n\n[... 9 bytes of this result were removed. All of it is in /h/r/c: read a range of that. ...]\n\nz";
  expect(keptFile({ body: cut })).toBe("/h/r/c");
  expect(keptFile(cut)).toBe("/h/r/c");
});
