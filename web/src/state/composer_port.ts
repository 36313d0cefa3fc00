/** Access to the composer of a chat for other components. There is no port if the user may not write. */
import { createStore } from "zustand/vanilla";
import type { ReferencePart } from "@/chat/types";

export interface ComposerPort {
  /** Insert a text and focus the composer. */
  insert: (text: string) => void;
  /** Insert a reference to lines of a file, with a comment. */
  refer: (reference: ReferencePart, text: string) => void;
  /** Insert a reference to a file and focus the composer. */
  mention: (path: string) => void;
}

export const composerPorts = createStore<{ ports: ReadonlyMap<string, ComposerPort> }>(() => ({ ports: new Map() }));

/** Register the composer of a chat. Return a function that removes it. */
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
