/**
 * The calls and reasoning blocks that the user opened or closed, by their ids. Rows are not used as keys, because
 * commits and regrouping change rows.
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

/** Return whether an item is open: as the user set it under its id or its alias, else the default. */
export function useOpen(id: string, otherwise: boolean, alias = id): [boolean, (open: boolean) => void] {
  const chosen = useStore(store, (state) => state.open.get(id) ?? state.open.get(alias));
  return [chosen ?? otherwise, (open) => choose([id, alias], open)];
}

const inGroup = (id: string) => `g:${id}`;

/**
 * Return whether a group is open. A group has no id, because calls are added at both ends. It is open if the user opened
 * a group with any of these calls, or one of the calls before it was grouped.
 */
export function isGroupOpen(open: Choices, members: readonly string[]): boolean {
  return members.some((id) => open.get(inGroup(id)) ?? open.get(id) ?? false);
}

export function useGroupOpen(members: readonly string[]): [boolean, (open: boolean) => void] {
  const open = useStore(store, (state) => isGroupOpen(state.open, members));
  return [open, (next) => choose(members.map(inGroup), next)];
}
