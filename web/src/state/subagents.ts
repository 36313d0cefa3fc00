/** The subagents of an open chat, with their state and figures. */
import { useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { createStore } from "zustand/vanilla";
import { getChat, interrupt, listAgents } from "@/api/chats";
import { isStatus } from "@/api/errors";
import type { AgentList, AgentView, ChatView } from "@/api/types.gen";
import { isAtWork } from "@/chat/subagent_texts";
import { keys, queryClient } from "@/state/queries";
import { subscribeWatch } from "./chat_list_stream";

// Figures and activity of a running subagent change without events.
const REFRESH_MS = 2_000;
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

/** Return whether a chat is a root with subagents: those of its view, or one that was reported since. */
export function useHasAgents(chat: ChatView | undefined): boolean {
  const [reported, setReported] = useState<string | null>(null);
  const id = chat?.id;
  useEffect(() => {
    if (id === undefined) return;
    return subscribeWatch({
      onChat: (one) => {
        if (one.parent_chat_id && one.root_chat_id === id) setReported(id);
      },
    });
  }, [id]);
  return chat !== undefined && ((chat.children?.length ?? 0) > 0 || reported === id);
}

/** Return the question of a subagent that waits for the user. */
export function useAgentAction({ chat_id, updated_at }: AgentView) {
  return useQuery({
    // A later question of the same subagent has another time.
    queryKey: ["agent-action", chat_id, updated_at],
    queryFn: async ({ signal }) => (await getChat(chat_id, signal)).action ?? null,
    staleTime: Number.POSITIVE_INFINITY,
  });
}

/** The subagent whose question the user wants to answer; null for the first one. */
export const askingAgent = createStore<{ id: string | null }>(() => ({ id: null }));

/** Stop some subagents of a chat. One that has ended meanwhile is no error. */
export async function stopAgents(chatId: string, agents: readonly { chat_id: string }[]): Promise<void> {
  try {
    const stops = agents.map(async ({ chat_id }) => {
      await interrupt(chat_id).catch((error: unknown) => {
        if (!isStatus(error, 409)) throw error;
      });
    });
    const failed = (await Promise.allSettled(stops)).find((one) => one.status === "rejected");
    if (failed) throw failed.reason;
  } finally {
    reloadAgents(chatId);
  }
}
