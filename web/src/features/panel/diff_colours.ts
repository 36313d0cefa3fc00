import { useEffect, useMemo, useState } from "react";
import { highlight, type Lines, languageOfPath } from "@/features/timeline/highlighter";
import type { DiffFile, DiffLine } from "@/lib/diff";

type Spans = Lines[number];

/** The colours of a line, if they are known. */
export type Colours = (file: DiffFile, line: DiffLine) => Spans | undefined;

// By the file as it was read: another state of it is another object.
const known = new WeakMap<DiffFile, ReadonlyMap<DiffLine, Spans>>();
const asked = new WeakSet<DiffFile>();

/** Both sides are coloured for themselves: an old string that is not closed must not colour what took its place. */
async function colour(file: DiffFile): Promise<void> {
  const language = languageOfPath(file.path);
  const found = new Map<DiffLine, Spans>();
  for (const side of ["removed", "added"] as const) {
    const lines = file.lines.filter((line) => line.kind === side || line.kind === "same");
    const coloured = await highlight(lines.map((line) => line.text).join("\n"), language);
    for (const [at, line] of lines.entries()) {
      const spans = coloured?.[at];
      if (spans) found.set(line, spans);
    }
  }
  known.set(file, found);
}

/** Colours for the files in view; the worker makes them, and lines are plain until it has. */
export function useColours(files: readonly DiffFile[]): Colours {
  const [round, setRound] = useState(0);
  useEffect(() => {
    let gone = false;
    for (const file of files) {
      if (asked.has(file)) continue;
      asked.add(file);
      void colour(file).then(() => !gone && setRound((round) => round + 1));
    }
    return () => {
      gone = true;
    };
  }, [files]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: another function when more is known, so that lines look again
  return useMemo(() => (file: DiffFile, line: DiffLine) => known.get(file)?.get(line), [round]);
}
