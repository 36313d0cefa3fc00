import { Suspense } from "react";
import { useStore } from "zustand";
import { createStore } from "zustand/vanilla";
import type { ChatView } from "@/api/types.gen";
import { lazyPart } from "@/ui/lazy_part";

const DeleteDialog = lazyPart(async () => (await import("@/features/sidebar/delete_dialog")).DeleteDialog);
const LabelsDialog = lazyPart(async () => (await import("@/features/sidebar/labels_dialog")).LabelsDialog);
const MoveDialog = lazyPart(async () => (await import("@/features/sidebar/move_dialog")).MoveDialog);
const RenameDialog = lazyPart(async () => (await import("@/features/sidebar/rename_dialog")).RenameDialog);
const DebugDialog = lazyPart(async () => (await import("@/features/sidebar/debug_dialog")).DebugDialog);
const ShareDialog = lazyPart(async () => (await import("@/features/sidebar/share_dialog")).ShareDialog);

type Kind = "move" | "rename" | "labels" | "share" | "debug" | "delete";

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
    case "move":
      return <MoveDialog {...props} />;
    case "rename":
      return <RenameDialog {...props} />;
    case "labels":
      return <LabelsDialog {...props} />;
    case "share":
      return <ShareDialog {...props} />;
    case "debug":
      return <DebugDialog {...props} />;
    case "delete":
      return <DeleteDialog {...props} />;
  }
}
