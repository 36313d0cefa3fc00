/**
 * An incremental JSON parser. `push` adds text; `value` is the value so far: complete members, and the beginning of the
 * last string. Numbers and literals are included when they are complete.
 *
 * Each character is read once, so the cost is linear in the length of the text.
 */

type Json = string | number | boolean | null | Json[] | { [key: string]: Json };

interface Container {
  value: Json[] | { [key: string]: Json };
  /** The key whose value follows; null in arrays. */
  key: string | null;
}

const ESCAPES: Record<string, string> = { b: "\b", f: "\f", n: "\n", r: "\r", t: "\t" };
const LITERALS: Record<string, Json> = { true: true, false: false, null: null };
const PLAIN = /[^"\\]+/y;

export class PartialJson {
  private root: Json | undefined;
  private readonly stack: Container[] = [];
  private mode: "value" | "string" | "escape" | "unicode" | "word" | "done" | "broken" = "value";
  private text = "";
  private code = "";
  private isKey = false;

  /** The value so far; undefined before the first value begins. */
  get value(): Json | undefined {
    return this.root;
  }

  /** Whether the text is not JSON. The value so far is kept, and further text is ignored. */
  get isBroken(): boolean {
    return this.mode === "broken";
  }

  get isComplete(): boolean {
    return this.mode === "done";
  }

  push(piece: string): void {
    let at = 0;
    while (at < piece.length) {
      if (this.mode === "broken") return;
      if (this.mode === "string") {
        PLAIN.lastIndex = at;
        const plain = PLAIN.exec(piece);
        if (plain) {
          this.text += plain[0];
          at += plain[0].length;
          continue;
        }
      }
      this.take(piece[at] ?? "");
      at += 1;
    }
    if (this.mode === "string" && !this.isKey) this.show();
  }

  /** End the text: a number at its end is complete. */
  end(): void {
    if (this.mode === "word") this.endWord();
  }

  private take(char: string): void {
    switch (this.mode) {
      case "string":
        if (char === '"') this.endString();
        else this.mode = "escape";
        return;
      case "escape":
        if (char === "u") {
          this.code = "";
          this.mode = "unicode";
        } else {
          this.text += ESCAPES[char] ?? char;
          this.mode = "string";
        }
        return;
      case "unicode":
        this.code += char;
        if (this.code.length === 4) {
          this.text += String.fromCharCode(Number.parseInt(this.code, 16));
          this.mode = "string";
        }
        return;
      case "word":
        if (/[\w+\-.]/.test(char)) {
          this.text += char;
          return;
        }
        this.endWord();
        this.take(char);
        return;
      case "done":
        if (!/\s/.test(char)) this.mode = "broken";
        return;
      case "value":
        this.begin(char);
    }
  }

  private begin(char: string): void {
    const top = this.stack.at(-1);
    if (/[\s,:]/.test(char)) return;
    if (char === '"') {
      this.isKey = top !== undefined && !Array.isArray(top.value) && top.key === null;
      this.text = "";
      this.mode = "string";
    } else if (char === "{" || char === "[") {
      const value: Container["value"] = char === "{" ? {} : [];
      this.put(value);
      this.stack.push({ value, key: null });
    } else if (char === "}" || char === "]") {
      this.stack.pop();
      this.endValue();
    } else if (/[\w-]/.test(char)) {
      this.text = char;
      this.mode = "word";
    } else {
      this.mode = "broken";
    }
  }

  private endString(): void {
    this.mode = "value";
    const top = this.stack.at(-1);
    if (this.isKey && top) {
      top.key = this.text;
      return;
    }
    this.show();
    this.endValue();
  }

  private endWord(): void {
    const known = Object.hasOwn(LITERALS, this.text) ? LITERALS[this.text] : Number(this.text);
    this.mode = "value";
    if (typeof known === "number" && Number.isNaN(known)) {
      this.mode = "broken";
      return;
    }
    this.put(known as Json);
    this.endValue();
  }

  /** End a value: in an array the next value follows, in an object the next key. */
  private endValue(): void {
    const top = this.stack.at(-1);
    if (!top) this.mode = "done";
    else {
      top.key = null;
      this.shown = false;
    }
  }

  private shown = false;

  /** Store the growing string in its parent. */
  private show(): void {
    const top = this.stack.at(-1);
    if (top && Array.isArray(top.value) && this.shown) top.value[top.value.length - 1] = this.text;
    else this.put(this.text);
    this.shown = true;
  }

  private put(value: Json): void {
    const top = this.stack.at(-1);
    if (!top) this.root = value;
    else if (Array.isArray(top.value)) top.value.push(value);
    else if (top.key !== null) {
      // Defined as an own property, even for names such as `__proto__`.
      Object.defineProperty(top.value, top.key, { value, writable: true, enumerable: true, configurable: true });
    } else this.mode = "broken";
    this.shown = false;
  }
}

/** Parse a whole text; undefined if nothing of it can be parsed. */
export function readPartial(text: string): unknown {
  const parser = new PartialJson();
  parser.push(text);
  return parser.value;
}
