/** JSON as lines that can be folded. */
export interface JsonLine {
  depth: number;
  /** The key of an object member; null for elements of arrays and closing lines. */
  key: string | null;
  /** The value in one line, or the opening or closing bracket. */
  text: string;
  kind: "string" | "number" | "word" | "open" | "close";
  /** The index of the closing line of an opening one; otherwise the line's own index. */
  end: number;
  /** The number of members or elements of an opening line. */
  size: number;
  isLast: boolean;
}

/** Return a value as lines, like `JSON.stringify` with indentation, except that empty objects and arrays take one line. */
export function jsonLines(value: unknown): JsonLine[] {
  const lines: JsonLine[] = [];
  add(lines, value, null, 0, true);
  return lines;
}

function add(lines: JsonLine[], value: unknown, key: string | null, depth: number, isLast: boolean): void {
  const index = lines.length;
  if (value === null || typeof value !== "object") {
    const kind = typeof value === "string" ? "string" : typeof value === "number" ? "number" : "word";
    lines.push({ depth, key, text: JSON.stringify(value) ?? "null", kind, end: index, size: 0, isLast });
    return;
  }
  const isList = Array.isArray(value);
  const members: [string | null, unknown][] = isList
    ? value.map((one): [null, unknown] => [null, one])
    : Object.entries(value);
  const [open, close] = isList ? ["[", "]"] : ["{", "}"];
  if (members.length === 0) {
    lines.push({ depth, key, text: `${open}${close}`, kind: "word", end: index, size: 0, isLast });
    return;
  }
  const head: JsonLine = { depth, key, text: open, kind: "open", end: index, size: members.length, isLast };
  lines.push(head);
  members.forEach(([name, one], at) => {
    add(lines, one, name, depth + 1, at === members.length - 1);
  });
  head.end = lines.length;
  lines.push({ depth, key: null, text: close, kind: "close", end: lines.length, size: 0, isLast });
}

const LONG_LINES = 12;

/** Return the opening lines that are folded at first: everything long except the outermost. */
export function foldedAtFirst(lines: readonly JsonLine[]): Set<number> {
  const folded = new Set<number>();
  lines.forEach((line, index) => {
    if (line.kind === "open" && line.depth > 0 && line.end - index > LONG_LINES) folded.add(index);
  });
  return folded;
}

/** Return the indexes of the lines that are not inside a folded one, at most `most`. */
export function visibleLines(lines: readonly JsonLine[], folded: ReadonlySet<number>, most: number): number[] {
  const shown: number[] = [];
  for (let index = 0; index < lines.length && shown.length < most; index += 1) {
    shown.push(index);
    if (folded.has(index)) index = lines[index]?.end ?? index;
  }
  return shown;
}

/** Return the lines that contain the words in their key or value. */
export function matchingLines(lines: readonly JsonLine[], wanted: string): number[] {
  if (!wanted) return [];
  const low = wanted.toLowerCase();
  return lines.flatMap((line, index) => (`${line.key ?? ""} ${line.text}`.toLowerCase().includes(low) ? [index] : []));
}

/** Return the folded lines without those around `index`, so that its line is visible. */
export function unfoldedTo(lines: readonly JsonLine[], folded: ReadonlySet<number>, index: number): Set<number> {
  return new Set([...folded].filter((open) => !(open < index && (lines[open]?.end ?? 0) >= index)));
}
