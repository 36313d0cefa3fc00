import { type RefObject, useEffect, useRef } from "react";
import type { TypedText } from "@/features/composer/typed";

interface Known {
  loaded: boolean;
  enterSends: boolean;
}

/**
 * Enter that was pressed before the settings said what it does. It writes a line, which nobody regrets; when it turns out
 * that it sends, and nothing was typed after it, it has sent. Returns what notes such a key.
 */
export function useEarlyEnter(
  box: RefObject<HTMLTextAreaElement | null>,
  typed: TypedText,
  known: Known,
  send: () => void,
) {
  const early = useRef<{ meant: string; written: string } | null>(null);
  // biome-ignore lint/correctness/useExhaustiveDependencies: once, when the settings are there
  useEffect(() => {
    const key = early.current;
    if (!known.loaded || !key) return;
    early.current = null;
    if (!known.enterSends || typed.text !== key.written) return;
    typed.write(key.meant);
    send();
  }, [known.loaded]);
  return () => {
    if (!box.current) return;
    const { value, selectionStart, selectionEnd } = box.current;
    early.current = { meant: value, written: `${value.slice(0, selectionStart)}\n${value.slice(selectionEnd)}` };
  };
}
