import { type KeyboardEvent, useRef } from "react";
import type { BusyBehavior } from "@/api/types.gen";
import type { TypedText } from "@/features/composer/typed_text";
import { announce } from "@/ui/announcer";
import { type Option, step } from "@/ui/combobox";
import { toast } from "@/ui/toast";
import type { useHistory } from "./message_history";

const ESC_MS = 2_000;

/** Select the next variable of a saved prompt, such as `{{file}}`, from this position on. Return whether there is one. */
export function selectVariable(box: HTMLTextAreaElement, from: number): boolean {
  const found = /\{\{[\w -]+\}\}/.exec(box.value.slice(from));
  if (!found) return false;
  const at = from + found.index;
  box.focus();
  box.setSelectionRange(at, at + found[0].length);
  return true;
}

interface Options {
  typed: TypedText;
  history: ReturnType<typeof useHistory>;
  /** The open menu; empty if it is closed. */
  options: readonly Option[];
  active: number;
  busy: boolean;
  canStop: boolean;
  /** Whether the next queued message is sent when the turn stops. */
  hasQueue: boolean;
  isEditing: boolean;
  hasContent: boolean;
  enterSends: boolean;
  /** Whether the setting `enterSends` has been loaded. */
  isEnterKnown: boolean;
  setActive: (index: number) => void;
  onPick: (id: string) => void;
  onCloseMenu: () => void;
  onCancelEdit: () => void;
  onStop: () => void;
  /** What Enter does while a turn runs. Ctrl-Enter does the other one. */
  busySend: "queue" | "steer";
  onSubmit: (busy: BusyBehavior) => void;
  onPromoteFirst: () => void;
  onEarlyEnter: () => void;
}

/** Return the key handler of the message box: the menu, Enter, Escape, and Up and Down for earlier messages. */
export function useComposerKeys(keys: Options) {
  const { typed, history, options, busy } = keys;
  const escAt = useRef(Number.NEGATIVE_INFINITY);

  function onEscape(): void {
    if (options.length > 0) keys.onCloseMenu();
    else if (keys.isEditing) keys.onCancelEdit();
    else if (history.isBrowsing) {
      history.leave();
      typed.write("");
    } else if (keys.canStop) {
      const now = performance.now();
      const isSecond = now - escAt.current < ESC_MS;
      escAt.current = isSecond ? Number.NEGATIVE_INFINITY : now;
      if (isSecond) keys.onStop();
      else {
        const next = keys.hasQueue ? " (the next queued message is sent)" : "";
        toast(`Esc again to stop the agent${next}`, { ms: ESC_MS });
        announce(`Press Escape again to stop the agent${next}`);
      }
    }
  }

  function onEnter(event: KeyboardEvent<HTMLTextAreaElement>, mod: boolean): void {
    const coarse = matchMedia("(pointer: coarse)").matches;
    const isPlain = !event.shiftKey && !event.altKey && !coarse;
    const other = keys.busySend === "queue" ? "steer" : "queue";
    if (mod && keys.enterSends) {
      event.preventDefault();
      if (keys.hasContent) keys.onSubmit(!busy ? keys.busySend : event.shiftKey ? "interrupt" : other);
      else if (busy && event.shiftKey) keys.onPromoteFirst();
    } else if (mod) {
      event.preventDefault();
      if (keys.hasContent) keys.onSubmit(busy && event.shiftKey ? other : keys.busySend);
    } else if (isPlain && !keys.isEnterKnown) {
      keys.onEarlyEnter();
    } else if (isPlain && keys.enterSends) {
      event.preventDefault();
      keys.onSubmit(keys.busySend);
    }
  }

  return (event: KeyboardEvent<HTMLTextAreaElement>): void => {
    // Enter that ends an input method's composition does not send. In some browsers the composition ends before its
    // key event, which then has the key code 229. A guard by time would swallow the next Enter.
    if (event.nativeEvent.isComposing || event.keyCode === 229) return;
    const mod = event.ctrlKey || event.metaKey;
    const active = Math.min(keys.active, options.length - 1);
    if (options.length > 0 && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      keys.setActive(step(options, active, event.key === "ArrowDown" ? 1 : -1));
      return;
    }
    if (options.length > 0 && (event.key === "Enter" || event.key === "Tab") && !event.shiftKey) {
      event.preventDefault();
      const picked = options[active];
      if (picked) keys.onPick(picked.id);
      return;
    }
    if (
      event.key === "Tab" &&
      !event.shiftKey &&
      selectVariable(event.currentTarget, event.currentTarget.selectionEnd)
    ) {
      event.preventDefault();
      return;
    }
    if (event.key === "Escape") {
      event.preventDefault();
      onEscape();
      return;
    }
    if (event.key === "Enter") {
      onEnter(event, mod);
      return;
    }
    // With a modifier key the arrows are shortcuts of the page: Alt switches chats.
    const isPlain = !mod && !event.altKey && !event.shiftKey;
    const empty = isPlain && (typed.text === "" || history.isBrowsing);
    if (event.key === "ArrowUp" && empty && !keys.isEditing) {
      event.preventDefault();
      void history.older().then((prompt) => prompt !== null && typed.write(prompt));
    } else if (event.key === "ArrowDown" && isPlain && history.isBrowsing) {
      event.preventDefault();
      const newer = history.newer();
      if (newer !== null) typed.write(newer);
    }
  };
}
