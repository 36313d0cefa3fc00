/** File paths in texts, which can be opened in the panel. */
import { fields } from "./tool_texts";

export interface FilePlace {
  path: string;
  line: number | null;
}

const NAMED = /^((?:\.?\/)?[\w@+.-]+(?:\/[\w@+.-]+)*)(?::(\d{1,7})(?::\d+|-\d+)?)?$/;
const HAS_EXTENSION = /[\w-]\.[A-Za-z][A-Za-z0-9]{0,9}$/;
const WITHOUT_EXTENSION = new Set(["Dockerfile", "Makefile", "LICENSE", "README", "CHANGELOG"]);
// A name without a folder counts as a file only with one of these extensions.
const SURE = new Set(
  "c cc cfg conf cpp cs css csv diff env go h hpp html ini ipynb java js json jsx kt lock lua md mjs patch php py rb rs rst scss sh sql svelte swift tf toml ts tsx txt vue xml yaml yml".split(
    " ",
  ),
);
const LONGEST = 300;

/** Parse a text such as `src/a.py:12` as a file and a line; null if it is not a path. */
export function filePlace(text: string): FilePlace | null {
  const found = text.length <= LONGEST ? NAMED.exec(text) : null;
  const path = found?.[1]?.replace(/^\.\//, "");
  if (!found || !path || path.split("/").includes("..")) return null;
  const name = path.slice(path.lastIndexOf("/") + 1);
  const line = found[2] === undefined ? null : Number(found[2]);
  const isFile = HAS_EXTENSION.test(name) || WITHOUT_EXTENSION.has(name);
  if (!isFile) return null;
  const isPlain = !path.includes("/") && line === null && !WITHOUT_EXTENSION.has(name);
  return isPlain && !SURE.has(name.slice(name.lastIndexOf(".") + 1).toLowerCase()) ? null : { path, line };
}

/** Return the parent folders of a file, outermost first, each with a slash at its end. */
export function foldersTo(path: string): string[] {
  const names = path.split("/").slice(0, -1);
  return names.map((_, at) => `${names.slice(0, at + 1).join("/")}/`);
}

// The text that the server writes into a truncated result.
const REMOVED = /bytes of this result were removed\. All of it is in (\/[^\n]{1,500}?): read a range of that\./;

/** Return the path of the file with the complete result of a truncated one, if it was stored. */
export function keptFile(result: unknown): string | null {
  const found = fields(fields(result).truncated).file;
  if (typeof found === "string" && found !== "") return found;
  for (const value of typeof result === "string" ? [result] : Object.values(fields(result))) {
    const named = typeof value === "string" ? REMOVED.exec(value) : null;
    if (named?.[1]) return named[1];
  }
  return null;
}
