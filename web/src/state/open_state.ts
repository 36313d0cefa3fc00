/**
 * What a reader opened or closed, by the id of the call or thought, never by row: neither commit nor regrouping closes
 * what was opened.
 */
import { useStore } from "zustand";
import { createStore } from "zustand/vanilla";

const store = createStore<{ open: ReadonlyMap<string, boolean> }>(() => ({ open: new Map() }));

export function setOpen(id: string, open: boolean): void {
  store.setState((state) => ({ open: new Map(state.open).set(id, open) }));
}

/** Whether it is open: as the reader left it, else as given. */
export function useOpen(id: string, otherwise: boolean): [boolean, (open: boolean) => void] {
  const chosen = useStore(store, (state) => state.open.get(id));
  return [chosen ?? otherwise, (open) => setOpen(id, open)];
}
