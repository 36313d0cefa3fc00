import {
  Archive,
  ArchiveRestore,
  ArrowDown,
  ArrowUp,
  Bug,
  Download,
  FileJson,
  Folder,
  Link as LinkIcon,
  MailOpen,
  Pencil,
  Pin,
  PinOff,
  Printer,
  Search,
  Share2,
  Tags,
  Trash2,
} from "lucide-react";
import { sentence } from "@/api/errors";
import type { ChatView } from "@/api/types.gen";
import { isBusy } from "@/chat/sidebar_list";
import { openFind } from "@/features/timeline/find_shortcut";
import { pinnedChats } from "@/state/chat_list";
import { chatSession } from "@/state/chat_sessions";
import type { MenuEntry } from "@/ui/menu";
import { modKey } from "@/ui/modifier_key";
import { toast } from "@/ui/toast";
import { archive, copyLink, markUnread, movePin, pin, stopAndArchive, unarchive, unpin } from "./chat_actions";
import { openChatDialog } from "./chat_dialogs";

/** Return the actions that the user may take on a chat. */
export function chatMenu(chat: ChatView): MenuEntry[] {
  const pinned = pinnedChats();
  const mine = chat.my_role === "owner";
  const isRoot = chat.parent_chat_id === null;
  const canPin = isRoot && !chat.archived;
  const at = pinned.findIndex((one) => one.id === chat.id);
  return [
    canPin &&
      (at >= 0
        ? { label: "Unpin", icon: <PinOff />, onSelect: () => void unpin(chat) }
        : { label: "Pin", icon: <Pin />, onSelect: () => void pin(chat, pinned.length) }),
    at > 0 && { label: "Move up", icon: <ArrowUp />, onSelect: () => void movePin(chat, at, pinned) },
    at >= 0 &&
      at < pinned.length - 1 && {
        label: "Move down",
        icon: <ArrowDown />,
        onSelect: () => void movePin(chat, at + 2, pinned),
      },
    mine && { label: "Rename", icon: <Pencil />, onSelect: () => openChatDialog("rename", chat) },
    mine && isRoot && { label: "Move to folder", icon: <Folder />, onSelect: () => openChatDialog("move", chat) },
    mine && isRoot && { label: "Labels", icon: <Tags />, onSelect: () => openChatDialog("labels", chat) },
    mine && isRoot && { label: "Share", icon: <Share2 />, onSelect: () => openChatDialog("share", chat) },
    mine && { label: "Debug records", icon: <Bug />, onSelect: () => openChatDialog("debug", chat) },
    // Also in the menu, because phones have no keyboard.
    location.pathname === `/c/${chat.id}` && {
      label: "Find in this chat",
      icon: <Search />,
      keys: `${modKey}-F`,
      onSelect: openFind,
    },
    // The export is made by the page that shows the chat.
    location.pathname === `/c/${chat.id}` && {
      label: "Export as Markdown",
      icon: <Download />,
      onSelect: () => void download(chat, "markdown"),
    },
    location.pathname === `/c/${chat.id}` && {
      label: "Export as JSON",
      icon: <FileJson />,
      onSelect: () => void download(chat, "json"),
    },
    location.pathname === `/c/${chat.id}` && {
      label: "Print",
      icon: <Printer />,
      onSelect: () => void print(chat),
    },
    { label: "Copy link", icon: <LinkIcon />, onSelect: () => void copyLink(chat) },
    !chat.has_unread && { label: "Mark as unread", icon: <MailOpen />, onSelect: () => void markUnread(chat) },
    ...(mine && isRoot ? ending(chat) : []),
  ];
}

async function print(chat: ChatView): Promise<void> {
  try {
    const { printChat } = await import("@/features/conversation/print_view");
    await printChat(chatSession(chat.id));
  } catch (error) {
    toast(sentence(error), { kind: "error" });
  }
}

async function download(chat: ChatView, format: "markdown" | "json"): Promise<void> {
  try {
    const { exportChat } = await import("@/features/conversation/chat_export");
    await exportChat(chatSession(chat.id), chat.title, format);
  } catch (error) {
    toast(sentence(error), { kind: "error" });
  }
}

function ending(chat: ChatView): MenuEntry[] {
  if (chat.archived) {
    return [
      "separator",
      { label: "Restore", icon: <ArchiveRestore />, onSelect: () => void unarchive(chat) },
      { label: "Delete", icon: <Trash2 />, danger: true, onSelect: () => openChatDialog("delete", chat) },
    ];
  }
  const busy = isBusy(chat) || (chat.children ?? []).some(isBusy);
  return [
    "separator",
    {
      label: "Archive",
      icon: <Archive />,
      disabled: busy ? "It is working. Stop it first." : false,
      onSelect: () => void archive(chat),
    },
    busy && { label: "Stop and archive", icon: <Archive />, onSelect: () => void stopAndArchive(chat) },
  ];
}
