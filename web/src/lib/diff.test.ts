import { expect, test } from "vitest";
import { type DiffFile, editedFile, gitFiles, ignoringSpace } from "@/lib/diff";

const CHANGED = `diff --git a/src/a b.py b/src/a b.py
index 1..2 100644
--- a/src/a b.py\t
+++ b/src/a b.py\t
@@ -10,3 +10,4 @@ def f():
 same
-old
--- dashes
+new
++++ pluses
+more
\\ No newline at end of file
`;

const shape = (file: DiffFile) => [file.path, file.added, file.removed, file.remarks];

test("lines are numbered on both sides, and may look like heads", () => {
  const [file] = gitFiles(CHANGED, "/p");

  expect(file && shape(file)).toEqual(["src/a b.py", 3, 2, []]);
  expect(file?.lines.map((line) => [line.kind, line.before, line.after])).toEqual([
    ["head", null, null],
    ["same", 10, 10],
    ["removed", 11, null],
    ["removed", 12, null],
    ["added", null, 11],
    ["added", null, 12],
    ["added", null, 13],
    ["note", null, null],
  ]);
  expect(file?.lines[3]?.text).toBe("-- dashes");
});

test("what has no lines is said", () => {
  const files = gitFiles(`diff --git a/old name.py b/new.py
similarity index 100%
rename from old name.py
rename to new.py
diff --git a/run b/run
old mode 100644
new mode 100755
diff --git a/x.png b/x.png
new file mode 100644
index 0..1
Binary files /dev/null and b/x.png differ
diff --git a/gone b/gone
deleted file mode 100644
--- a/gone
+++ /dev/null
@@ -1 +0,0 @@
-x
diff --git a/empty file b/empty file
new file mode 100644
`);

  expect(files.map(shape)).toEqual([
    ["new.py", 0, 0, ["Renamed from old name.py"]],
    ["run", 0, 0, ["Mode 100644 is now 100755"]],
    ["x.png", 0, 0, ["New file", "Binary file"]],
    ["gone", 0, 1, ["Deleted"]],
    ["empty file", 0, 0, ["New file"]],
  ]);
});

test("names in quotes are read", () => {
  const [file] = gitFiles(
    'diff --git "a/\\303\\244 \\"x\\"\\t.py" "b/\\303\\244 \\"x\\"\\t.py"\nold mode 100644\nnew mode 100755\n',
  );

  expect(file?.path).toBe('ä "x"\t.py');
});

test("a note instead of a diff has no files", () => {
  expect(gitFiles("[This diff is not shown: it has 4000000 bytes.]\n")).toEqual([]);
  expect(gitFiles("")).toEqual([]);
});

test("without space, lines that were only moved are the same, and hunks without changes are gone", () => {
  const file = editedFile("x", [
    "@@ -1,2 +1,3 @@\n-if (a)\n-  go()\n+if ( a )\n+stay()\n+go()\n",
    "@@ -9 +10 @@\n-\tx\n+  x\n",
  ]);

  const shown = ignoringSpace(file);

  expect(shown.lines.map((line) => [line.kind, line.text, line.before, line.after])).toEqual([
    ["head", "@@ -1,2 +1,3 @@", null, null],
    ["same", "if ( a )", 1, 1],
    ["added", "stay()", null, 2],
    ["same", "go()", 2, 3],
  ]);
  expect([shown.added, shown.removed]).toEqual([1, 0]);
  expect(ignoringSpace(editedFile("y", ["@@ -9 +10 @@\n-\tx\n+  x\n"])).remarks).toEqual(["Only space changed"]);
});
