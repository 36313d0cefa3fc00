/**
 * What is typed, beside React: a key changes a string here, and only what looks different then is rendered. The box is
 * the browser's own; it is written to when somebody else than the typist changes its text.
 */
import type { RefObject } from "react";
import { createStore, type StoreApi } from "zustand/vanilla";
import type { ReferencePart } from "@/chat/types";

export interface Typed {
  text: string;
  caret: number;
  /** What was ever referred to; a text may have lost some of them. */
  references: readonly ReferencePart[];
}

export class TypedText {
  readonly store: StoreApi<Typed>;
  private readonly box: RefObject<HTMLTextAreaElement | null>;
  private readonly growsByItself = CSS.supports("field-sizing", "content");

  constructor(box: RefObject<HTMLTextAreaElement | null>, text: string, references: readonly ReferencePart[]) {
    this.box = box;
    this.store = createStore<Typed>(() => ({ text, caret: 0, references }));
  }

  get text(): string {
    return this.store.getState().text;
  }

  get references(): readonly ReferencePart[] {
    return this.store.getState().references;
  }

  get caret(): number {
    return this.store.getState().caret;
  }

  /** The typist changed the box. */
  read(): void {
    const box = this.box.current;
    if (!box) return;
    this.fit();
    this.store.setState({ text: box.value, caret: box.selectionStart });
  }

  /** The caret went elsewhere. Only where a name may be under it: other moves change nothing. */
  moved(): void {
    const { text, caret } = this.store.getState();
    const at = this.box.current?.selectionStart ?? caret;
    if (at !== caret && text.includes("@")) this.store.setState({ caret: at });
  }

  /** Change the text from elsewhere; `caret` is where it goes on. */
  write(next: string | ((before: string) => string), caret?: number): void {
    const text = typeof next === "string" ? next : next(this.text);
    const box = this.box.current;
    if (box && box.value !== text) box.value = text;
    this.fit();
    this.store.setState({ text, ...(caret === undefined ? {} : { caret }) });
    if (caret !== undefined) requestAnimationFrame(() => box?.setSelectionRange(caret, caret));
  }

  refer(next: (known: readonly ReferencePart[]) => readonly ReferencePart[]): void {
    this.store.setState((state) => ({ references: next(state.references) }));
  }

  /** Browsers without field-sizing: the box is measured. */
  fit(): void {
    const box = this.box.current;
    if (!box || this.growsByItself) return;
    box.style.height = "auto";
    box.style.height = `${box.scrollHeight}px`;
  }
}
