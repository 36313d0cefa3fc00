import { type RefObject, useEffect, useRef } from "react";
import type { TypedText } from "@/features/composer/typed_text";

interface Settings {
  /** Whether loading has ended. */
  loaded: boolean;
  /** Whether the value comes from the server. */
  known: boolean;
  enterSends: boolean;
}

/** After this time the key press is not sent any more. */
const LATE_MS = 3_000;

/**
 * Handles an Enter key that is pressed before the settings are loaded. It inserts a line break. If the settings arrive
 * soon after, Enter is set to send, and nothing was typed since, the message is sent. Returns the handler for the key.
 */
export function useEarlyEnter(
  box: RefObject<HTMLTextAreaElement | null>,
  typed: TypedText,
  settings: Settings,
  send: () => void,
) {
  const early = useRef<{ meant: string; written: string; at: number } | null>(null);
  // biome-ignore lint/correctness/useExhaustiveDependencies: runs once, when the settings are loaded
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
