import { lazy, Suspense } from "react";
import { useStore } from "zustand";
import { createStore } from "zustand/vanilla";
import type { ChatView } from "@/api/types.gen";

const DeleteDialog = lazy(async () => ({ default: (await import("@/features/sidebar/delete_dialog")).DeleteDialog }));
const LabelsDialog = lazy(async () => ({ default: (await import("@/features/sidebar/labels_dialog")).LabelsDialog }));
const RenameDialog = lazy(async () => ({ default: (await import("@/features/sidebar/rename_dialog")).RenameDialog }));
const ShareDialog = lazy(async () => ({ default: (await import("@/features/sidebar/share_dialog")).ShareDialog }));

type Kind = "rename" | "labels" | "share" | "delete";

const store = createStore<{ kind: Kind; chat: ChatView } | { kind: null }>(() => ({ kind: null }));

/** Open a dialog for a chat, from any menu. */
export function openChatDialog(kind: Kind, chat: ChatView): void {
  // Delayed until the menu has closed and restored the focus.
  setTimeout(() => store.setState({ kind, chat }, true));
}

const close = () => store.setState({ kind: null }, true);

/** The dialogs for chats; mounted once in the shell. Each is loaded when it is first opened. */
export function ChatDialogs() {
  return (
    <Suspense>
      <ChatDialog />
    </Suspense>
  );
}

function ChatDialog() {
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
