import { type RefObject, useEffect, useRef, useState } from "react";
import type { Row } from "@/chat/timeline_rows";
import type { FindBar } from "@/features/timeline/find_bar";
import type { ChatSession } from "@/state/chat_session";
import { loadPart } from "@/ui/lazy_part";

// Not by `lazy`, which renders nothing at first even if the module is loaded: the first letters would go elsewhere.
let Bar: typeof FindBar | null = null;

async function loadBar(): Promise<void> {
  Bar ??= (await loadPart(() => import("@/features/timeline/find_bar"))).FindBar;
}

const ASKED = "rookery:find";

/** Open the search field of the current chat, after the menu has restored the focus. */
export const openFind = () => void setTimeout(() => document.dispatchEvent(new Event(ASKED)));

export interface FindProps {
  session: ChatSession;
  rows: readonly Row[];
  box: RefObject<HTMLElement | null>;
  onShow: (key: string) => void;
  /** Scrolls to a message, and loads it first if necessary. */
  onShowMessage: (message: number) => Promise<void>;
}

/** Opens the search field of a chat by Ctrl-F. A second Ctrl-F opens the browser's search. */
export function Find(props: FindProps) {
  const [open, setOpen] = useState(false);
  const input = useRef<HTMLInputElement>(null);
  const opener = useRef<HTMLElement | null>(null);
  useEffect(() => {
    const begin = () => {
      if (!open) opener.current = document.activeElement as HTMLElement | null;
      if (Bar) setOpen(true);
      else void loadBar().then(() => setOpen(true));
      input.current?.select();
    };
    const onKey = (event: KeyboardEvent) => {
      if (event.key.toLowerCase() !== "f" || !(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey)
        return;
      if (open && document.activeElement === input.current) return;
      event.preventDefault();
      begin();
    };
    document.addEventListener("keydown", onKey);
    document.addEventListener(ASKED, begin);
    return () => {
      document.removeEventListener("keydown", onKey);
      document.removeEventListener(ASKED, begin);
    };
  }, [open]);
  // After the first rows are shown, so that the field opens at once.
  useEffect(() => void loadBar(), []);
  const close = () => {
    setOpen(false);
    opener.current?.focus();
  };
  return open && Bar && <Bar {...props} input={input} onClose={close} />;
}
