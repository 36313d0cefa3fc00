import { useEffect, useMemo, useState } from "react";
import { highlight, type Lines, languageOfPath } from "@/features/timeline/highlighter";
import type { DiffFile, DiffLine } from "@/lib/diff";

type Spans = Lines[number];

/** Returns the colors of a line, if they are known. */
export type Colors = (file: DiffFile, line: DiffLine) => Spans | undefined;

// By file object: a changed file is a new object.
const known = new WeakMap<DiffFile, ReadonlyMap<DiffLine, Spans>>();
const asked = new WeakSet<DiffFile>();

/** Highlight the old and the new side separately: an unclosed string on one side must not affect the other. */
async function color(file: DiffFile): Promise<void> {
  const language = languageOfPath(file.path);
  const found = new Map<DiffLine, Spans>();
  for (const side of ["removed", "added"] as const) {
    const lines = file.lines.filter((line) => line.kind === side || line.kind === "same");
    const colored = await highlight(lines.map((line) => line.text).join("\n"), language);
    for (const [at, line] of lines.entries()) {
      const spans = colored?.[at];
      if (spans) found.set(line, spans);
    }
  }
  known.set(file, found);
}

/** Return the colors for the visible files. A worker computes them; lines are plain until it is done. */
export function useLineColors(files: readonly DiffFile[]): Colors {
  const [round, setRound] = useState(0);
  useEffect(() => {
    let gone = false;
    for (const file of files) {
      if (asked.has(file)) continue;
      asked.add(file);
      void color(file).then(() => !gone && setRound((round) => round + 1));
    }
    return () => {
      gone = true;
    };
  }, [files]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: a new function makes the lines render again
  return useMemo(() => (file: DiffFile, line: DiffLine) => known.get(file)?.get(line), [round]);
}
