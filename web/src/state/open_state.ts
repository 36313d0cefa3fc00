/**
 * What a reader opened or closed, by the id of the call or thought, never by row: neither commit nor regrouping closes
 * what was opened.
 */
import { useStore } from "zustand";
import { createStore } from "zustand/vanilla";

type Choices = ReadonlyMap<string, boolean>;

const store = createStore<{ open: Choices }>(() => ({ open: new Map() }));

export function setOpen(id: string, open: boolean): void {
  choose([id], open);
}

function choose(ids: readonly string[], open: boolean): void {
  store.setState((state) => ({ open: new Map([...state.open, ...ids.map((id) => [id, open] as const)]) }));
}

/** Whether it is open: as the reader left it, under this or its other name, else as given. */
export function useOpen(id: string, otherwise: boolean, alias = id): [boolean, (open: boolean) => void] {
  const chosen = useStore(store, (state) => state.open.get(id) ?? state.open.get(alias));
  return [chosen ?? otherwise, (open) => choose([id, alias], open)];
}

const inGroup = (id: string) => `g:${id}`;

/**
 * A group has no name: calls join it at both ends. It is open when it was opened with any of these in it, and when one
 * of them was open before it became part of a group.
 */
export function isGroupOpen(open: Choices, members: readonly string[]): boolean {
  return members.some((id) => open.get(inGroup(id)) ?? open.get(id) ?? false);
}

export function useGroupOpen(members: readonly string[]): [boolean, (open: boolean) => void] {
  const open = useStore(store, (state) => isGroupOpen(state.open, members));
  return [open, (next) => choose(members.map(inGroup), next)];
}
