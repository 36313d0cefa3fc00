import { useStore } from "zustand";
import { createStore } from "zustand/vanilla";
import type { ChatView } from "@/api/types.gen";
import { chatMenu } from "@/features/sidebar/chat_menu";
import { AGAIN_MS, MenuAt, type MenuPlace, placeOf } from "@/ui/menu";

interface Open {
  chat: ChatView;
  place: MenuPlace;
  opener: HTMLElement;
}

const store = createStore<{ open: Open | null; closed: string; closedAt: number }>(() => ({
  open: null,
  closed: "",
  closedAt: Number.NEGATIVE_INFINITY,
}));

/** Open the menu of a row below its button. */
export function openRowMenu(chat: ChatView, opener: HTMLElement, byPointer: boolean): void {
  const { closed, closedAt } = store.getState();
  if (byPointer && closed === chat.id && performance.now() - closedAt < AGAIN_MS) return;
  store.setState({ open: { chat, opener, place: placeOf(opener) } });
}

/** Open the menu of a row at the pointer, or at the row if it was opened by the keyboard. */
export function openRowMenuAt(chat: ChatView, opener: HTMLElement, x: number, y: number): void {
  const row = opener.getBoundingClientRect();
  const place = x || y ? { left: x, top: y } : { left: row.left + 24, top: row.top };
  store.setState({ open: { chat, opener, place: { ...place, width: 0, height: x || y ? 0 : row.height } } });
}

export const useHasRowMenu = (id: string) => useStore(store, (state) => state.open?.chat.id === id);

/** The menu that all rows share. */
export function RowMenu() {
  const open = useStore(store, (state) => state.open);
  if (!open) return null;
  const { chat, place, opener } = open;
  return (
    <MenuAt
      key={`${chat.id} ${place.left} ${place.top}`}
      place={place}
      opener={opener}
      label={`Actions for ${chat.title}`}
      items={() => chatMenu(chat)}
      onClose={() => store.setState({ open: null, closed: chat.id, closedAt: performance.now() })}
    />
  );
}
