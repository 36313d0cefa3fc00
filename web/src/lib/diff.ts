/** A parser for unified diffs: the output of `git diff`, and the diffs in tool results. */

export interface DiffLine {
  kind: "head" | "added" | "removed" | "same" | "note";
  text: string;
  before: number | null;
  after: number | null;
}

export interface DiffFile {
  /** Unique among the files that are shown together. */
  key: string;
  path: string;
  /** Properties of the change: new, deleted, renamed, mode, binary. */
  remarks: string[];
  lines: DiffLine[];
  added: number;
  removed: number;
}

interface Head {
  before: string | null;
  after: string | null;
  remarks: string[];
  oldMode: string | null;
}

/** Parse the output of `git diff`. `root` makes the keys unique among several repositories. */
export function gitFiles(diff: string, root = ""): DiffFile[] {
  const files: DiffFile[] = [];
  let head: Head | null = null;
  let file: DiffFile | null = null;
  let body: string[] = [];
  const finish = () => {
    if (!file || !head) return;
    file.path = head.after ?? head.before ?? file.path;
    file.key = `${root}\0${file.path}`;
    file.remarks = head.remarks;
    counted(file, hunkLines(body));
    files.push(file);
  };
  for (const line of diff.replace(/\n$/, "").split("\n")) {
    if (line.startsWith("diff --git ")) {
      finish();
      file = { key: "", path: namedTwice(line.slice(11)), remarks: [], lines: [], added: 0, removed: 0 };
      head = { before: null, after: null, remarks: [], oldMode: null };
      body = [];
    } else if (body.length > 0 || line.startsWith("@@")) body.push(line);
    else if (head) readHead(head, line);
  }
  finish();
  return files;
}

/** Return one file from the diffs of several edits; each diff is a separate hunk. */
export function editedFile(path: string, diffs: readonly string[]): DiffFile {
  const file: DiffFile = { key: path, path, remarks: [], lines: [], added: 0, removed: 0 };
  counted(
    file,
    diffs.flatMap((diff) => hunkLines(withoutNames(diff))),
  );
  return file;
}

function counted(file: DiffFile, lines: DiffLine[]): void {
  file.lines = lines;
  for (const line of lines) {
    if (line.kind === "added") file.added += 1;
    else if (line.kind === "removed") file.removed += 1;
  }
}

function readHead(head: Head, line: string): void {
  const say = (remark: string) => head.remarks.push(remark);
  if (line.startsWith("--- ")) head.before = nameOf(line.slice(4));
  else if (line.startsWith("+++ ")) head.after = nameOf(line.slice(4));
  else if (line.startsWith("new file mode ")) say("New file");
  else if (line.startsWith("deleted file mode ")) say("Deleted");
  else if (line.startsWith("rename from ")) say(`Renamed from ${unquoted(line.slice(12))}`);
  else if (line.startsWith("rename to ")) head.after = unquoted(line.slice(10));
  else if (line.startsWith("copy from ")) say(`Copied from ${unquoted(line.slice(10))}`);
  else if (line.startsWith("copy to ")) head.after = unquoted(line.slice(8));
  else if (line.startsWith("old mode ")) head.oldMode = line.slice(9);
  else if (line.startsWith("new mode ")) say(`Mode ${head.oldMode} is now ${line.slice(9)}`);
  else if (line.startsWith("Binary files ") || line === "GIT binary patch") say("Binary file");
}

/** Split `a/x y b/x y`: without a rename both names are equal, so the middle is known. */
function namedTwice(names: string): string {
  if (names.startsWith('"')) return unquoted(/^"(?:[^"\\]|\\.)*"/.exec(names)?.[0] ?? names).slice(2);
  return names.slice(2, (names.length - 1) / 2);
}

/** Return the name after `--- ` or `+++ `; null for a missing side. Git adds a tab after names with spaces. */
function nameOf(text: string): string | null {
  const name = unquoted(text.replace(/\t$/, ""));
  return name === "/dev/null" ? null : name.slice(2);
}

const ESCAPES: Record<string, number> = { a: 7, b: 8, t: 9, n: 10, v: 11, f: 12, r: 13 };

/** Decode a quoted name, in which special bytes are octal escapes. */
function unquoted(name: string): string {
  if (!name.startsWith('"')) return name;
  const bytes: number[] = [];
  const encode = new TextEncoder();
  for (const [whole, octal, letter] of name.slice(1, -1).matchAll(/\\([0-7]{3})|\\(.)|[^\\]+/gs)) {
    if (octal !== undefined) bytes.push(Number.parseInt(octal, 8));
    else if (letter !== undefined) bytes.push(ESCAPES[letter] ?? letter.charCodeAt(0));
    else bytes.push(...encode.encode(whole));
  }
  return new TextDecoder().decode(new Uint8Array(bytes));
}

/** Return the lines of a diff of one file, without the two name lines. */
function withoutNames(diff: string): string[] {
  const lines = diff.replace(/\n$/, "").split("\n");
  const first = lines.findIndex((line) => line.startsWith("@@"));
  return first < 0 ? lines.filter((line) => !/^(---|\+\+\+) /.test(line)) : lines.slice(first);
}

function hunkLines(body: readonly string[]): DiffLine[] {
  let before = 1;
  let after = 1;
  return body.map((line): DiffLine => {
    const at = /^@@ -(\d+)(?:,\d+)? \+(\d+)/.exec(line);
    if (at) {
      before = Number(at[1]);
      after = Number(at[2]);
      return { kind: "head", text: line, before: null, after: null };
    }
    const text = line.slice(1);
    if (line.startsWith("+")) return { kind: "added", text, before: null, after: after++ };
    if (line.startsWith("-")) return { kind: "removed", text, before: before++, after: null };
    if (line.startsWith("\\")) return { kind: "note", text: text.trim(), before: null, after: null };
    return { kind: "same", text, before: before++, after: after++ };
  });
}

const squeezed = (text: string) => text.replace(/\s+/g, "");

/** Return the file with changes of whitespace ignored. */
export function ignoringSpace(file: DiffFile): DiffFile {
  const lines: DiffLine[] = [];
  let removed: DiffLine[] = [];
  let added: DiffLine[] = [];
  const flush = () => {
    lines.push(...paired(removed, added));
    removed = [];
    added = [];
  };
  for (const line of file.lines) {
    if (line.kind === "removed") {
      if (added.length > 0) flush();
      removed.push(line);
    } else if (line.kind === "added") added.push(line);
    else {
      flush();
      lines.push(line);
    }
  }
  flush();
  const kept = changedHunks(lines);
  const remarks =
    kept.length < lines.length && kept.length === 0 ? [...file.remarks, "Only space changed"] : file.remarks;
  const next: DiffFile = { ...file, remarks, lines: [], added: 0, removed: 0 };
  counted(next, kept);
  return next;
}

function paired(removed: DiffLine[], added: DiffLine[]): DiffLine[] {
  const lines: DiffLine[] = [];
  let left = 0;
  let right = 0;
  for (let at = 0; at < removed.length; at += 1) {
    const old = squeezed(removed[at]?.text ?? "");
    const match = added.findIndex((line, index) => index >= right && squeezed(line.text) === old);
    const found = added[match];
    if (!found) continue;
    lines.push(...removed.slice(left, at), ...added.slice(right, match));
    lines.push({ ...found, kind: "same", before: removed[at]?.before ?? null });
    left = at + 1;
    right = match + 1;
  }
  return [...lines, ...removed.slice(left), ...added.slice(right)];
}

/** Return the hunks that contain changes. */
function changedHunks(lines: readonly DiffLine[]): DiffLine[] {
  const hunks: DiffLine[][] = [];
  for (const line of lines) {
    if (line.kind === "head" || hunks.length === 0) hunks.push([]);
    hunks.at(-1)?.push(line);
  }
  return hunks.filter((hunk) => hunk.some((line) => line.kind === "added" || line.kind === "removed")).flat();
}
