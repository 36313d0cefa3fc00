/** Merging of chat events into the chat list. */
import type { ChatView } from "@/api/types.gen";

/**
 * Merge two views of one chat. Fields of the execution state are taken from the view with the higher
 * `snapshot_version`, and descriptive fields from the one with the higher `meta_version`. Events have no `children`.
 */
export function mergeChat(known: ChatView, news: ChatView): ChatView {
  const runs = news.snapshot_version >= known.snapshot_version;
  const merged: ChatView = { ...known, ...news };
  if (known.children !== undefined && news.children === undefined) merged.children = known.children;
  if (known.match !== undefined && news.match === undefined) merged.match = known.match;
  if (!runs) {
    merged.status = known.status;
    merged.last_error = known.last_error;
    merged.queue_len = known.queue_len;
    merged.needs_user = known.needs_user;
    merged.requires_action_deadline_at = known.requires_action_deadline_at;
    merged.last_turn_summary = known.last_turn_summary;
    merged.usage = known.usage;
    merged.snapshot_version = known.snapshot_version;
    merged.history_version = known.history_version;
  }
  if (news.meta_version < known.meta_version) {
    merged.title = known.title;
    merged.labels = known.labels;
    merged.archived = known.archived;
    merged.pin_order = known.pin_order;
    merged.folder_id = known.folder_id;
    merged.context = known.context ?? null;
    merged.meta_version = known.meta_version;
  }
  // Change counts have no version, so the newer observation is used.
  if (known.git && news.git && news.git.refreshed_at < known.git.refreshed_at) merged.git = known.git;
  return merged;
}

/** Merge an event into the list, for a root chat or a subagent's chat. Events of unknown chats change nothing. */
export function mergeIntoList(list: readonly ChatView[], news: ChatView): readonly ChatView[] {
  let changed = false;
  const next = list.map((chat) => {
    if (chat.id === news.id) {
      changed = true;
      return mergeChat(chat, news);
    }
    if (chat.id !== news.root_chat_id || news.parent_chat_id === null) return chat;
    changed = true;
    const children = chat.children ?? [];
    const known = children.some((one) => one.id === news.id);
    return {
      ...chat,
      children: known ? children.map((one) => (one.id === news.id ? mergeChat(one, news) : one)) : [...children, news],
    };
  });
  return changed ? next : list;
}

export function removeFromList(list: readonly ChatView[], chatId: string): readonly ChatView[] {
  return list
    .filter((chat) => chat.id !== chatId)
    .map((chat) =>
      chat.children?.some((one) => one.id === chatId)
        ? { ...chat, children: chat.children.filter((one) => one.id !== chatId) }
        : chat,
    );
}
