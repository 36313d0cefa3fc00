/** The subagents of an open chat, with their state and figures. */
import { useQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import { listAgents } from "@/api/chats";
import type { AgentList } from "@/api/types.gen";
import { isAtWork } from "@/chat/agents";
import { keys, queryClient } from "@/state/queries";
import { subscribeWatch } from "@/state/watch";

// Figures and activity of a running subagent change without events.
const REFRESH_MS = 4_000;
const EVENTS_MS = 300;

/** Return the subagents of a chat's family. `useFollowAgents` keeps them current. */
export function useAgents(chatId: string, enabled = true) {
  return useQuery({
    queryKey: keys.agents(chatId),
    queryFn: ({ signal }) => listAgents(chatId, signal),
    enabled,
    staleTime: Number.POSITIVE_INFINITY,
  });
}

export function reloadAgents(chatId: string): void {
  void queryClient.invalidateQueries({ queryKey: keys.agents(chatId) });
}

/** Load the shown subagents of a chat again when one of them changes, and regularly while one is at work. */
export function useFollowAgents(chatId: string, rootId: string | undefined): void {
  useEffect(() => {
    let soon: ReturnType<typeof setTimeout> | undefined;
    const reload = () => reloadAgents(chatId);
    const timer = setInterval(() => {
      const known = queryClient.getQueryData<AgentList>(keys.agents(chatId));
      if (document.visibilityState === "visible" && known?.agents.some(isAtWork)) reload();
    }, REFRESH_MS);
    const leave = subscribeWatch({
      onReload: reload,
      onChat: (chat) => {
        if (!chat.parent_chat_id || chat.root_chat_id !== rootId) return;
        clearTimeout(soon);
        soon = setTimeout(reload, EVENTS_MS);
      },
    });
    return () => {
      clearInterval(timer);
      clearTimeout(soon);
      leave();
    };
  }, [chatId, rootId]);
}
