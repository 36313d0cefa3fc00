import { expect, test } from "vitest";
import {
  completed,
  headOf,
  isMisleading,
  type Lexed,
  lex,
  lexTail,
  NOTHING,
  safeHref,
  type Token,
} from "@/chat/markdown";

const DOCUMENT = `# Title

A paragraph with **bold**, \`code\` and a [link](https://example.org).

- one
- two
  - nested

  with a paragraph
- three

1. first
2. second

> quote
> goes on

\`\`\`python
def f():

    return 1
\`\`\`

| a | b |
| --- | --- |
| 1 | 2 |
| 3 | 4 |

Setext
======

$$
x^2
$$

Costs $5 and $10, \\(a+b\\) inline, <b>html</b>.

<div>
block
</div>

- [ ] open
- [x] done

Inline $a_1$ and a note[^1].

[^1]: The note
  goes on.

<details>
<summary>More</summary>

Folded *text*.

</details>

---

Last line`;

const shape = (tokens: readonly Token[]) => tokens.map((token) => [token.type, token.raw]);

test("reading only the tail gives what reading all gives, for every prefix", () => {
  let before: Lexed = NOTHING;
  for (let end = 1; end <= DOCUMENT.length; end += 1) {
    const text = DOCUMENT.slice(0, end);
    before = lexTail(before, text);
    expect(shape(before.tokens), `after ${end}`).toEqual(shape(lex(text)));
  }
});

test("larger pieces give the same", () => {
  for (const size of [3, 7, 20, 64]) {
    let before: Lexed = NOTHING;
    for (let end = size; end < DOCUMENT.length + size; end += size) before = lexTail(before, DOCUMENT.slice(0, end));
    expect(shape(before.tokens)).toEqual(shape(lex(DOCUMENT)));
  }
});

test("unfinished marks of the last block are completed for showing", () => {
  const [paragraph] = completed({ text: "a **bol", tokens: lex("a **bol") });
  expect((paragraph as { tokens: Token[] }).tokens.map((token) => token.type)).toContain("strong");
});

test("prices are text and formulas are formulas", () => {
  const types = (text: string) => (lex(text)[0] as { tokens?: Token[] }).tokens?.map((token) => token.type);
  expect(types("It costs $5 and $10.")).toEqual(["text"]);
  expect(types("Take \\(x^2\\) now")).toEqual(["text", "math", "text"]);
  expect(lex("$$\nx\n$$")[0]).toMatchObject({ type: "math", text: "x", display: true });
  expect(lex("\\[ y \\]")[0]).toMatchObject({ type: "math", text: "y", display: true });
});

test("links lead only where they may", () => {
  expect(safeHref("https://a.b")).toBe("https://a.b");
  expect(safeHref("mailto:a@b.c")).toBe("mailto:a@b.c");
  for (const bad of [
    "javascript:alert(1)",
    " JaVaScript:x",
    "data:text/html,x",
    "vbscript:x",
    "/api/v1/chats",
    "file:///etc",
  ]) {
    expect(safeHref(bad)).toBeNull();
  }
});

test("a link whose words name another host is told", () => {
  expect(isMisleading("https://bank.com", "https://evil.com/bank.com")).toBe(true);
  expect(isMisleading("bank.com", "https://www.bank.com/x")).toBe(false);
  expect(isMisleading("click here", "https://evil.com")).toBe(false);
});

test("the beginning of a long text ends with a paragraph if one ends near", () => {
  expect(headOf("short", 10)).toBe("short");
  expect(headOf(`${"a".repeat(80)}\n\n${"b".repeat(80)}`, 100)).toBe("a".repeat(80));
  expect(headOf("a".repeat(500), 100)).toHaveLength(100);
  expect(headOf(`a\n\n${"b".repeat(500)}`, 100)).toHaveLength(100);
});

test("a single dollar sign is a formula only where it cannot be a price, a path or prose", () => {
  const types = (text: string) => (lex(text)[0] as { tokens?: Token[] }).tokens?.map((token) => token.type);
  for (const formula of ["$x$", "$E = mc^2$", "$\\alpha_i + \\beta$", "$5x + 3$", "$f(x) \\text{ if } x > 0$"])
    expect(types(`Take ${formula}, then.`), formula).toEqual(["text", "math", "text"]);
  for (const text of [
    "It costs $5, or 3$.",
    "From $10-$20 to US$5 and A$6.",
    "Set $HOME/bin:$PATH and $HOME.",
    "between $5/$6",
    "a $ b $ c",
    "echo `$x` and `$y`",
    "the $foo and the bar$ too",
  ])
    expect(types(text), text).not.toContain("math");
});

test("details hold parsed text, also within each other, and end with the text while they arrive", () => {
  const [outer, after] = lex(
    "<details open>\n<summary>**A**</summary>\n\n- b\n\n<details>\n\nc\n\n</details>\n\n</details>\n\nend",
  );
  expect(outer).toMatchObject({ type: "details", open: true, summary: [{ type: "strong" }] });
  expect((outer as unknown as { tokens: Token[] }).tokens.map((one) => one.type)).toEqual(["list", "space", "details"]);
  expect(after).toMatchObject({ type: "space" });
  expect(lex("<details>\n<summary>A</summary>\n\nstill").map((one) => one.type)).toEqual(["details"]);
});

test("thousands of open details neither exhaust the stack nor take long", () => {
  const began = performance.now();
  lex("<details>".repeat(5000));
  lex(`${"<details>\n".repeat(5000)}${"</details>\n".repeat(5000)}`);
  expect(performance.now() - began).toBeLessThan(2000);
});

test("footnotes and their references are told apart from text", () => {
  const tokens = lex("One[^1] and [^b c].\n\n[^1]: The **note**\n  goes on.\n\nAfter.");
  expect(tokens.map((one) => one.type)).toEqual(["paragraph", "space", "footnote", "paragraph"]);
  expect((tokens[0] as { tokens: Token[] }).tokens.map((one) => one.type)).toEqual(["text", "footnote-ref", "text"]);
});
