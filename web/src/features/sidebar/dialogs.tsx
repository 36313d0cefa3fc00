import { useStore } from "zustand";
import { createStore } from "zustand/vanilla";
import type { ChatView } from "@/api/types.gen";
import { DeleteDialog } from "@/features/sidebar/delete_dialog";
import { LabelsDialog } from "@/features/sidebar/labels_dialog";
import { RenameDialog } from "@/features/sidebar/rename_dialog";
import { ShareDialog } from "@/features/sidebar/share_dialog";

type Kind = "rename" | "labels" | "share" | "delete";

const store = createStore<{ kind: Kind; chat: ChatView } | { kind: null }>(() => ({ kind: null }));

/** Open a dialog about a chat, from any menu. */
export function openChatDialog(kind: Kind, chat: ChatView): void {
  // After the menu has closed and given its focus back.
  setTimeout(() => store.setState({ kind, chat }, true));
}

const close = () => store.setState({ kind: null }, true);

/** The dialogs about chats; once in the shell. */
export function ChatDialogs() {
  const state = useStore(store);
  if (state.kind === null) return null;
  const props = { chat: state.chat, onClose: close };
  switch (state.kind) {
    case "rename":
      return <RenameDialog {...props} />;
    case "labels":
      return <LabelsDialog {...props} />;
    case "share":
      return <ShareDialog {...props} />;
    case "delete":
      return <DeleteDialog {...props} />;
  }
}
