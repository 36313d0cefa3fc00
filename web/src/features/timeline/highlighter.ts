/** The client of the highlighting worker. The worker is started by the first code block; results are cached. */
export interface HighlightRequest {
  id: number;
  code: string;
  language: string;
}

/** Text and color of each token, by line. */
export type Lines = readonly (readonly (readonly [string, string])[])[];

export interface HighlightAnswer {
  id: number;
  lines: Lines | null;
}

const MOST_CHARS = 100_000;
const MOST_LINES = 3_000;
const KEPT = 400;

const ALIASES: Record<string, string> = {
  sh: "bash",
  shell: "bash",
  zsh: "bash",
  console: "bash",
  js: "javascript",
  mjs: "javascript",
  ts: "typescript",
  py: "python",
  rb: "ruby",
  rs: "rust",
  yml: "yaml",
  "c++": "cpp",
  cc: "cpp",
  h: "c",
  hpp: "cpp",
  cs: "csharp",
  kt: "kotlin",
  md: "markdown",
  dockerfile: "docker",
  makefile: "make",
  mk: "make",
  patch: "diff",
  htm: "html",
  jsonc: "json",
  svg: "xml",
  cfg: "ini",
  conf: "ini",
  golang: "go",
};

/** Return the language for the name in a code fence. */
export function languageOf(name: string): string {
  const plain =
    name
      .trim()
      .toLowerCase()
      .split(/[\s,{:]/, 1)[0] ?? "";
  return ALIASES[plain] ?? plain;
}

/** Return the language for a file name. */
export function languageOfPath(path: string): string {
  const base = path.split("/").pop()?.toLowerCase() ?? "";
  if (base === "dockerfile" || base === "makefile") return languageOf(base);
  return languageOf(base.includes(".") ? (base.split(".").pop() ?? "") : "");
}

let worker: Worker | null = null;
let last = 0;
const waiting = new Map<number, (lines: Lines | null) => void>();
const cache = new Map<string, Lines | null>();

function start(): Worker {
  if (worker) return worker;
  worker = new Worker(new URL("./highlight.worker.ts", import.meta.url), { type: "module", name: "highlight" });
  worker.onmessage = (event: MessageEvent<HighlightAnswer>) => {
    waiting.get(event.data.id)?.(event.data.lines);
    waiting.delete(event.data.id);
  };
  worker.onerror = () => {
    for (const done of waiting.values()) done(null);
    waiting.clear();
  };
  return worker;
}

export function cachedLines(code: string, language: string): Lines | null | undefined {
  return cache.get(`${language}\n${code}`);
}

/** Return the highlighted lines; null if the code stays plain. */
export async function highlight(code: string, language: string): Promise<Lines | null> {
  if (!language || code.length > MOST_CHARS) return null;
  const key = `${language}\n${code}`;
  const known = cache.get(key);
  if (known !== undefined) return known;
  if (code.split("\n").length > MOST_LINES) return null;
  last += 1;
  const id = last;
  const lines = await new Promise<Lines | null>((resolve) => {
    waiting.set(id, resolve);
    start().postMessage({ id, code, language } satisfies HighlightRequest);
  });
  cache.set(key, lines);
  if (cache.size > KEPT) cache.delete(cache.keys().next().value ?? "");
  return lines;
}
