import { type InfiniteData, keepPreviousData, useInfiniteQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { listChats } from "@/api/chats";
import type { ChatListPage, ChatView } from "@/api/types.gen";
import { mergeChat, removeFromList } from "@/chat/chat_list";
import { type Filter, filterQuery, withChat } from "@/chat/sidebar_list";
import { keys, queryClient } from "@/state/queries";
import { subscribeWatch } from "@/state/watch";

const PAGE = 50;
const REFETCH_MS = 500;

type Pages = InfiniteData<ChatListPage, string | undefined>;

// What events have told since this page was opened. An answer that was asked for before an event is older than it.
const told = new Map<string, ChatView>();
const gone = new Set<string>();
let refetch: ReturnType<typeof setTimeout> | undefined;

/** The chats that a filter lets through, page by page, kept current by the watch stream. */
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

/** The pinned chats of every list that is loaded, in their order. */
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

/** Change every list that is loaded. `change` gives null for those it says nothing about. */
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
      // Sections sort by themselves: all rows may stand on the first page.
      return { ...data, pages: data.pages.map((page, index) => ({ ...page, items: index === 0 ? [...next] : [] })) };
    });
  }
}

/** Show a change at once; what it returns puts the exact former state back. */
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

/** Keep the lists current; once, while somebody is signed in. Returns what ends it. */
export function followChats(): () => void {
  return subscribeWatch({
    onReload: () => void queryClient.invalidateQueries({ queryKey: ["chats"] }),
    onChat: (chat) => {
      const known = told.get(chat.id);
      told.set(chat.id, known ? mergeChat(known, chat) : chat);
      gone.delete(chat.id);
      changeLists((chats, filter) => withChat(chats, chat, filter));
      queryClient.setQueryData<ChatView>(keys.chat(chat.id), (old) => old && mergeChat(old, chat));
      // A page that is on its way may lack what this event brought.
      if (queryClient.isFetching({ queryKey: ["chats"] }) > 0) reloadLists();
    },
    onGone: (id) => {
      gone.add(id);
      changeLists((chats) => removeFromList(chats, id));
    },
  });
}
