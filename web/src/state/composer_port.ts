/** The way from other parts of a page into the composer of a chat; there is none while nobody may write. */
import { createStore } from "zustand/vanilla";
import type { ReferencePart } from "@/chat/types";

export interface ComposerPort {
  /** Put a text into the box and go there. */
  insert: (text: string) => void;
  /** Refer to lines of a file, with a remark. */
  refer: (reference: ReferencePart, text: string) => void;
  /** Refer to a whole file, and go there. */
  mention: (path: string) => void;
}

export const composerPorts = createStore<{ ports: ReadonlyMap<string, ComposerPort> }>(() => ({ ports: new Map() }));

/** Offer the composer of a chat. Returns what takes it back. */
export function offerComposer(chatId: string, port: ComposerPort): () => void {
  composerPorts.setState(({ ports }) => ({ ports: new Map(ports).set(chatId, port) }));
  return () =>
    composerPorts.setState(({ ports }) => {
      if (ports.get(chatId) !== port) return {};
      const left = new Map(ports);
      left.delete(chatId);
      return { ports: left };
    });
}
