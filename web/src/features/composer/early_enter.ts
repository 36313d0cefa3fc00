import { type RefObject, useEffect, useRef } from "react";
import type { TypedText } from "@/features/composer/typed";

interface Settings {
  /** Nothing more is waited for. */
  loaded: boolean;
  /** The server has said it. */
  known: boolean;
  enterSends: boolean;
}

/** Whoever has waited this long does not think of that key any more. */
const LATE_MS = 3_000;

/**
 * Enter that was pressed before the settings said what it does. It writes a line, which nobody regrets; when it turns out
 * soon that it sends, and nothing was typed after it, it has sent. Returns what notes such a key.
 */
export function useEarlyEnter(
  box: RefObject<HTMLTextAreaElement | null>,
  typed: TypedText,
  settings: Settings,
  send: () => void,
) {
  const early = useRef<{ meant: string; written: string; at: number } | null>(null);
  // biome-ignore lint/correctness/useExhaustiveDependencies: once, when the settings are there
  useEffect(() => {
    const key = early.current;
    if (!settings.loaded || !key) return;
    early.current = null;
    const isMeant = settings.known && settings.enterSends && performance.now() - key.at < LATE_MS;
    if (!isMeant || typed.text !== key.written) return;
    typed.write(key.meant);
    send();
  }, [settings.loaded]);
  return () => {
    if (!box.current) return;
    const { value, selectionStart, selectionEnd } = box.current;
    const written = `${value.slice(0, selectionStart)}\n${value.slice(selectionEnd)}`;
    early.current = { meant: value, written, at: performance.now() };
  };
}
