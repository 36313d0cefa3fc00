/** The worker that highlights code. It uses the JavaScript engine, because the content security policy forbids WASM. */
import { createCssVariablesTheme, createHighlighterCore, type HighlighterCore, type LanguageInput } from "shiki/core";
import { createJavaScriptRegexEngine } from "shiki/engine/javascript";
import type { HighlightAnswer, HighlightRequest } from "@/features/timeline/highlighter";

const LANGUAGES: Record<string, () => Promise<unknown>> = {
  bash: () => import("shiki/langs/bash.mjs"),
  c: () => import("shiki/langs/c.mjs"),
  cpp: () => import("shiki/langs/cpp.mjs"),
  csharp: () => import("shiki/langs/csharp.mjs"),
  css: () => import("shiki/langs/css.mjs"),
  diff: () => import("shiki/langs/diff.mjs"),
  docker: () => import("shiki/langs/docker.mjs"),
  go: () => import("shiki/langs/go.mjs"),
  html: () => import("shiki/langs/html.mjs"),
  ini: () => import("shiki/langs/ini.mjs"),
  java: () => import("shiki/langs/java.mjs"),
  javascript: () => import("shiki/langs/javascript.mjs"),
  json: () => import("shiki/langs/json.mjs"),
  jsx: () => import("shiki/langs/jsx.mjs"),
  kotlin: () => import("shiki/langs/kotlin.mjs"),
  lua: () => import("shiki/langs/lua.mjs"),
  make: () => import("shiki/langs/make.mjs"),
  markdown: () => import("shiki/langs/markdown.mjs"),
  php: () => import("shiki/langs/php.mjs"),
  python: () => import("shiki/langs/python.mjs"),
  ruby: () => import("shiki/langs/ruby.mjs"),
  rust: () => import("shiki/langs/rust.mjs"),
  sql: () => import("shiki/langs/sql.mjs"),
  swift: () => import("shiki/langs/swift.mjs"),
  toml: () => import("shiki/langs/toml.mjs"),
  tsx: () => import("shiki/langs/tsx.mjs"),
  typescript: () => import("shiki/langs/typescript.mjs"),
  xml: () => import("shiki/langs/xml.mjs"),
  yaml: () => import("shiki/langs/yaml.mjs"),
};

const theme = createCssVariablesTheme({ name: "rookery", variablePrefix: "--code-", variableDefaults: {} });
let started: Promise<HighlighterCore> | null = null;

async function highlighter(): Promise<HighlighterCore> {
  started ??= createHighlighterCore({
    themes: [theme],
    langs: [],
    engine: createJavaScriptRegexEngine({ forgiving: true }),
  });
  return started;
}

async function color({ id, code, language }: HighlightRequest): Promise<HighlightAnswer> {
  const load = LANGUAGES[language];
  if (!load) return { id, lines: null };
  try {
    const core = await highlighter();
    if (!core.getLoadedLanguages().includes(language)) await core.loadLanguage(load as unknown as LanguageInput);
    const { tokens } = core.codeToTokens(code, { lang: language, theme: "rookery" });
    return { id, lines: tokens.map((line) => line.map((token) => [token.content, token.color ?? ""] as const)) };
  } catch {
    // The code is shown without highlighting.
    return { id, lines: null };
  }
}

self.onmessage = (event: MessageEvent<HighlightRequest>) => {
  void color(event.data).then((answer) => self.postMessage(answer));
};
