import { useQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import { useParams } from "react-router";
import type { ChatView } from "@/api/types.gen";
import { NO_FILTER, unreadCount } from "@/chat/sidebar_list";
import { useChatList } from "@/state/chat_list";

/** Return the page title with the number of unread chats, such as `(2) Fix the flaky test - Rookery`. */
export function pageTitle(unread: number, title: string | undefined): string {
  return `${unread > 0 ? `(${unread}) ` : ""}${title ? `${title} - ` : ""}Rookery`;
}

export function usePageTitle(): void {
  const { id } = useParams();
  const { chats } = useChatList(NO_FILTER);
  const listed = chats.find((chat) => chat.id === id);
  const { data: opened } = useQuery<ChatView>({ queryKey: ["chat", id], enabled: false });
  const title = pageTitle(unreadCount(chats), (listed ?? opened)?.title);
  useEffect(() => {
    document.title = title;
    const icon = document.querySelector<HTMLLinkElement>('link[rel="icon"]');
    const href = title.startsWith("(") ? "/favicon-unread.svg" : "/favicon.svg";
    if (icon && icon.getAttribute("href") !== href) icon.href = href;
  }, [title]);
}
