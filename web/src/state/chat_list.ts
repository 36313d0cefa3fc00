import { type InfiniteData, keepPreviousData, useInfiniteQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { listChats } from "@/api/chats";
import type { ChatListPage, ChatView } from "@/api/types.gen";
import { mergeChat, removeFromList } from "@/chat/chat_list";
import { type Filter, filterQuery, withChat } from "@/chat/sidebar_list";
import { keys, queryClient } from "@/state/queries";
import { subscribeWatch } from "./chat_list_stream";

const PAGE = 50;
const REFETCH_MS = 500;

type Pages = InfiniteData<ChatListPage, string | undefined>;

// The newest chats from events. A response may be older than an event that arrived after its request.
const told = new Map<string, ChatView>();
const gone = new Set<string>();
let refetch: ReturnType<typeof setTimeout> | undefined;

/** Return the chats that match the filter, page by page, updated by the watch stream. */
export function useChatList(filter: Filter) {
  const query = useInfiniteQuery({
    queryKey: ["chats", filter],
    queryFn: async ({ pageParam, signal }) =>
      current(
        await listChats({ q: filterQuery(filter), limit: PAGE, ...(pageParam ? { cursor: pageParam } : {}) }, signal),
      ),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    placeholderData: keepPreviousData,
    staleTime: Number.POSITIVE_INFINITY,
  });
  const chats = useMemo(() => query.data?.pages.flatMap((page) => page.items) ?? [], [query.data]);
  return { ...query, chats };
}

/** Return the pinned chats of all loaded lists, in order. */
export function pinnedChats(): ChatView[] {
  const found = new Map<string, ChatView>();
  for (const [, data] of queryClient.getQueriesData<Pages>({ queryKey: ["chats"] })) {
    for (const page of data?.pages ?? []) for (const chat of page.items) if (chat.pin_order) found.set(chat.id, chat);
  }
  return [...found.values()].sort((a, b) => (a.pin_order ?? 0) - (b.pin_order ?? 0));
}

function current(page: ChatListPage): ChatListPage {
  const items = page.items
    .filter((chat) => !gone.has(chat.id))
    .map((chat) => {
      const event = told.get(chat.id);
      return event && event.snapshot_version > chat.snapshot_version ? mergeChat(chat, event) : chat;
    });
  return { ...page, items };
}

/** Change all loaded lists. `change` returns null for lists that it does not concern. */
export function changeLists(change: (chats: readonly ChatView[], filter: Filter) => readonly ChatView[] | null): void {
  for (const cached of queryClient.getQueryCache().findAll({ queryKey: ["chats"] })) {
    const filter = cached.queryKey[1] as Filter;
    queryClient.setQueryData<Pages>(cached.queryKey, (data) => {
      if (!data) return data;
      const next = change(
        data.pages.flatMap((page) => page.items),
        filter,
      );
      if (!next) return data;
      // The sections are sorted later, so all rows can be put on the first page.
      return { ...data, pages: data.pages.map((page, index) => ({ ...page, items: index === 0 ? [...next] : [] })) };
    });
  }
}

/** Show a change immediately. Return a function that restores the earlier state. */
export function changeAtOnce(id: string, change: Partial<ChatView>): () => void {
  const before = queryClient.getQueriesData<Pages>({ queryKey: ["chats"] });
  changeLists((chats, filter) => {
    const chat = chats.find((one) => one.id === id);
    return chat ? withChat(chats, { ...chat, ...change }, filter) : null;
  });
  return () => {
    for (const [key, data] of before) queryClient.setQueryData(key, data);
  };
}

export function reloadLists(): void {
  clearTimeout(refetch);
  refetch = setTimeout(() => queryClient.invalidateQueries({ queryKey: ["chats"] }), REFETCH_MS);
}

/** Keep the lists up to date while a user is signed in. Return a function that stops it. */
export function followChats(): () => void {
  return subscribeWatch({
    onReload: () => void queryClient.invalidateQueries({ queryKey: ["chats"] }),
    onChat: (chat) => {
      const known = told.get(chat.id);
      told.set(chat.id, known ? mergeChat(known, chat) : chat);
      gone.delete(chat.id);
      changeLists((chats, filter) => withChat(chats, chat, filter));
      queryClient.setQueryData<ChatView>(keys.chat(chat.id), (old) => old && mergeChat(old, chat));
      // A pending page may be older than this event.
      if (queryClient.isFetching({ queryKey: ["chats"] }) > 0) reloadLists();
    },
    onGone: (id) => {
      gone.add(id);
      changeLists((chats) => removeFromList(chats, id));
    },
  });
}
