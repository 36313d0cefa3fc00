/**
 * The text of the message box, outside of React: a key changes a string here, and only components whose output changes
 * render. The text area is uncontrolled; it is written only when code changes the text.
 */
import type { RefObject } from "react";
import { createStore, type StoreApi } from "zustand/vanilla";
import type { ReferencePart } from "@/chat/types";

export interface Typed {
  text: string;
  caret: number;
  /** All references that were inserted. The text may no longer contain some of them. */
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

  /** Read the text after the user changed it. */
  read(): void {
    const box = this.box.current;
    if (!box) return;
    this.fit();
    this.store.setState({ text: box.value, caret: box.selectionStart });
  }

  /** Note a move of the caret. Ignored if the text has no `@`, because then no menu depends on the caret. */
  moved(): void {
    const { text, caret } = this.store.getState();
    const at = this.box.current?.selectionStart ?? caret;
    if (at !== caret && text.includes("@")) this.store.setState({ caret: at });
  }

  /** Replace the text, and optionally set the caret. */
  write(next: string | ((before: string) => string), caret?: number): void {
    const text = typeof next === "string" ? next : next(this.text);
    const box = this.box.current;
    if (box && box.value !== text) box.value = text;
    this.fit();
    this.store.setState({ text, ...(caret === undefined ? {} : { caret }) });
    if (caret !== undefined) box?.setSelectionRange(caret, caret);
  }

  refer(next: (known: readonly ReferencePart[]) => readonly ReferencePart[]): void {
    this.store.setState((state) => ({ references: next(state.references) }));
  }

  /** Set the height of the text area in browsers without `field-sizing`. */
  fit(): void {
    const box = this.box.current;
    if (!box || this.growsByItself) return;
    box.style.height = "auto";
    box.style.height = `${box.scrollHeight}px`;
  }
}
