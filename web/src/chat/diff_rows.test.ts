import { expect, test } from "vitest";
import { type DiffRow, diffRows, FOLD_LINES, fileTree, nextChange, placed, quoted, signature } from "@/chat/diff_rows";
import { type DiffFile, editedFile } from "@/lib/diff";

const FILE = editedFile("src/x.py", ["@@ -10,2 +10,3 @@\n same\n-old\n-older\n+new\n"]);
const PLAIN = { toggled: new Set<string>(), viewed: () => false, split: false, commenting: null };

const kinds = (rows: DiffRow[]) => rows.map((row) => row.kind);

test("long changes and those that were viewed start folded, and by hand all open and close", () => {
  const long: DiffFile = { ...FILE, key: "long", added: FOLD_LINES };

  expect(kinds(diffRows([long], PLAIN))).toEqual(["file"]);
  expect(diffRows([long], { ...PLAIN, toggled: new Set(["long"]) }).length).toBeGreaterThan(1);
  expect(kinds(diffRows([FILE], { ...PLAIN, viewed: () => true }))).toEqual(["file"]);
  expect(kinds(diffRows([FILE], { ...PLAIN, toggled: new Set([FILE.key]) }))).toEqual(["file"]);
});

test("side by side, old lines stand at the left of the new ones", () => {
  const rows = diffRows([FILE], { ...PLAIN, split: true });

  expect(kinds(rows)).toEqual(["file", "line", "pair", "pair", "pair"]);
  expect(rows.slice(2).map((row) => row.kind === "pair" && [row.left?.line.text, row.right?.line.text])).toEqual([
    ["same", "same"],
    ["old", "new"],
    ["older", undefined],
  ]);
  expect(new Set(rows.map((row) => row.key)).size).toBe(rows.length);
});

test("the box of a comment stands under the last line of the selection, in both ways to show it", () => {
  const commenting = { key: FILE.key, anchor: 3, head: 2 };

  expect(kinds(diffRows([FILE], { ...PLAIN, commenting }))).toEqual([
    "file",
    "line",
    "line",
    "line",
    "line",
    "comment",
    "line",
  ]);
  expect(kinds(diffRows([FILE], { ...PLAIN, split: true, commenting })).at(-1)).toBe("comment");
});

test("a selection over both sides quotes the side where it ends", () => {
  expect(quoted(FILE, { key: FILE.key, anchor: 1, head: 4 })).toEqual({
    type: "file-reference",
    file_name: "src/x.py",
    start_line: 10,
    end_line: 11,
    content: "same\nnew",
  });
  expect(quoted(FILE, { key: FILE.key, anchor: 3, head: 2 })).toMatchObject({
    start_line: 11,
    end_line: 12,
    content: "old\nolder",
  });
});

test("keys go from change to change, also over what has no lines", () => {
  const empty: DiffFile = { ...FILE, key: "empty", lines: [] };
  const rows = diffRows([FILE, empty, FILE], PLAIN);
  const second = rows.findLastIndex((row) => row.kind === "line" && row.line.kind === "head");

  expect(nextChange(rows, 0, 1)).toBe(1);
  expect(nextChange(rows, 1, 1)).toBe(kinds(rows).indexOf("file", 1));
  expect(nextChange(rows, second, 1)).toBeNull();
  expect(nextChange(rows, second, -1)).toBe(kinds(rows).indexOf("file", 1));
});

test("a mark falls when the change is another", () => {
  const other = editedFile("src/x.py", ["@@ -10,2 +10,3 @@\n same\n-old\n-older\n+nev\n"]);

  expect(signature(FILE)).toBe(signature({ ...FILE }));
  expect(signature(FILE)).not.toBe(signature(other));
});

test("files stand under their folders, which are named once", () => {
  const files = ["src/b/deep/x.py", "README", "src/a.py", "src/b/deep/y.py", "srcs/z"].map((path) =>
    editedFile(path, []),
  );

  expect(fileTree(files).map((row) => `${"-".repeat(row.depth)}${row.name}`)).toEqual([
    "README",
    "src",
    "-a.py",
    "-b/deep",
    "--x.py",
    "--y.py",
    "srcs",
    "-z",
  ]);
});

test("a remark finds its lines again, by their text or at least by their numbers", () => {
  const at = (text: string) => FILE.lines.findIndex((line) => line.text === text);
  for (const [from, to] of [
    ["same", "new"],
    ["old", "older"],
    ["new", "new"],
  ]) {
    const selection = { key: FILE.key, anchor: at(from ?? ""), head: at(to ?? "") };
    const found = placed([FILE], quoted(FILE, selection));
    expect(found && quoted(FILE, found)).toEqual(quoted(FILE, selection));
  }
  const changed = editedFile("src/x.py", ["@@ -10,2 +10,3 @@\n same\n-old\n-older\n+newer\n"]);
  const quote = quoted(FILE, { key: FILE.key, anchor: at("new"), head: at("new") });
  expect(placed([changed], quote)).toMatchObject({ key: changed.key });
  expect(placed([{ ...changed, path: "src/y.py" }], quote)).toBeNull();
});
