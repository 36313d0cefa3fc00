import { deleteChat, interrupt, patchChat } from "@/api/chats";
import { sentence } from "@/api/errors";
import { get, post } from "@/api/http";
import type { ChatView, GroupViewOfChatSettingsValues, PatchBody } from "@/api/types.gen";
import { removeFromList } from "@/chat/chat_list";
import { changeAtOnce, changeLists, reloadLists } from "@/state/chat_list";
import { queryClient } from "@/state/queries";
import { copyText } from "@/ui/clipboard";
import { toast } from "@/ui/toast";

const UNDO_MS = 8_000;
const DAY_MS = 24 * 60 * 60_000;

/** Change a chat. The change is shown immediately; if the server refuses it, it is reverted and the error is shown. */
export async function change(chat: ChatView, body: PatchBody, shown: Partial<ChatView>): Promise<boolean> {
  const undo = changeAtOnce(chat.id, shown);
  try {
    await patchChat(chat.id, body);
    void queryClient.invalidateQueries({ queryKey: ["chat", chat.id] });
    return true;
  } catch (error) {
    undo();
    toast(sentence(error), { kind: "error" });
    return false;
  }
}

export async function archive(chat: ChatView): Promise<void> {
  if (!(await change(chat, { archived: true }, { archived: true, pin_order: null }))) return;
  await tellArchived(chat, "is in the archive");
}

/** Say that a chat was archived and when it will be deleted, with a button to undo it. */
async function tellArchived(chat: ChatView, what: string): Promise<void> {
  // If the date cannot be loaded, the notice is shown without it, because the user needs the button.
  const group = await get<GroupViewOfChatSettingsValues>("/settings/chats").catch(() => null);
  const days = group?.values.retention_days;
  const date = new Date(Date.now() + (days ?? 0) * DAY_MS).toLocaleDateString(undefined, { dateStyle: "long" });
  toast(`“${chat.title}” ${what}.${days ? ` It will be deleted on ${date}.` : ""}`, {
    ms: UNDO_MS,
    action: { label: "Undo", run: () => void unarchive({ ...chat, archived: true }) },
  });
}

export async function unarchive(chat: ChatView): Promise<void> {
  await change(chat, { archived: false }, { archived: false });
  // The loaded lists without archived chats lack this chat.
  reloadLists();
}

/** Stop the turn, and archive the chat when it has stopped. */
export async function stopAndArchive(chat: ChatView): Promise<void> {
  try {
    await interrupt(chat.id);
  } catch (error) {
    toast(sentence(error), { kind: "error" });
    return;
  }
  for (let attempt = 0; attempt < 20; attempt += 1) {
    try {
      await patchChat(chat.id, { archived: true });
    } catch {
      await new Promise((resolve) => setTimeout(resolve, 500));
      continue;
    }
    changeAtOnce(chat.id, { archived: true, pin_order: null });
    await tellArchived(chat, "was stopped and is in the archive");
    return;
  }
  toast("The chat is still stopping. Archive it when it has stopped.", { kind: "error" });
}

export const pin = (chat: ChatView, last: number) => change(chat, { pin_order: 1_000_000 }, { pin_order: last + 1 });
export const unpin = (chat: ChatView) => change(chat, { pin_order: 0 }, { pin_order: null });

/** Move a pinned chat to a position, counted from 1. */
export async function movePin(chat: ChatView, to: number, pinned: ChatView[]): Promise<void> {
  const order = pinned.filter((one) => one.id !== chat.id).toSpliced(to - 1, 0, chat);
  changeLists((chats) =>
    chats.map((one) => {
      const at = order.findIndex((other) => other.id === one.id);
      return at < 0 ? one : { ...one, pin_order: at + 1 };
    }),
  );
  try {
    await patchChat(chat.id, { pin_order: to });
  } catch (error) {
    toast(sentence(error), { kind: "error" });
    reloadLists();
  }
}

export const rename = (chat: ChatView, title: string) => change(chat, { title }, { title });
export const relabel = (chat: ChatView, labels: Record<string, string>) => change(chat, { labels }, { labels });

export async function markUnread(chat: ChatView): Promise<void> {
  const undo = changeAtOnce(chat.id, { has_unread: true });
  try {
    await post(`/chats/${chat.id}/read`, { message_id: 0, force: true });
  } catch (error) {
    undo();
    toast(sentence(error), { kind: "error" });
  }
}

export async function remove(chat: ChatView): Promise<void> {
  await deleteChat(chat.id);
  changeLists((chats) => removeFromList(chats, chat.id));
  toast(`“${chat.title}” was deleted.`, { kind: "ok" });
}

export async function copyLink(chat: ChatView): Promise<void> {
  await copyText(`${location.origin}/c/${chat.id}`, "The link is on the clipboard.");
}
