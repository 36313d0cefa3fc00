import { readdirSync, readFileSync } from "node:fs";
import { join, relative } from "node:path";
import { expect, test } from "vitest";

const SOURCE = new URL("../src", import.meta.url).pathname;
// Imports point to the left only: what is further right may use what is further left.
const LAYERS = ["api", "chat", "state", "ui", "features", "app"];

function files(folder: string): string[] {
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) return files(path);
    return /\.tsx?$/.test(entry.name) ? [path] : [];
  });
}

function imported(path: string): string[] {
  const text = readFileSync(path, "utf8");
  return [...text.matchAll(/(?:from|import\()\s*"@\/([a-z]+)/g)].map((match) => match[1] ?? "");
}

test("imports point to lower layers only", () => {
  const wrong = files(SOURCE).flatMap((path) => {
    const name = relative(SOURCE, path);
    const own = LAYERS.indexOf(name.split("/")[0] ?? "");
    if (own < 0) return [];
    return imported(path)
      .filter((other) => LAYERS.indexOf(other) > own)
      .map((other) => `${name} imports ${other}`);
  });

  expect(wrong).toEqual([]);
});

test("imports across folders use the name of the layer", () => {
  const wrong = files(SOURCE).flatMap((path) => {
    const text = readFileSync(path, "utf8");
    return /from "\.\.\//.test(text) ? [relative(SOURCE, path)] : [];
  });

  expect(wrong).toEqual([]);
});

test("the pure part knows neither React nor the page", () => {
  const wrong = files(join(SOURCE, "chat")).flatMap((path) => {
    const text = readFileSync(path, "utf8");
    return /from "(react|zustand|@tanstack)|\b(document|window|localStorage)\./.test(text)
      ? [relative(SOURCE, path)]
      : [];
  });

  expect(wrong).toEqual([]);
});

test("only the formula module writes markup", () => {
  const wrong = files(SOURCE).flatMap((path) => {
    const name = relative(SOURCE, path);
    return /innerHTML|dangerouslySetInnerHTML/.test(readFileSync(path, "utf8")) ? [name] : [];
  });

  expect(wrong.filter((name) => name !== "features/timeline/formula.tsx")).toEqual([]);
});
