/** Cached queries of the API. */
import { QueryClient, useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import * as account from "@/api/account";
import * as chats from "@/api/chats";
import { ApiError } from "@/api/errors";
import type { ChatView, ModelsOfProvider, ModelView } from "@/api/types.gen";
import { mergeChat } from "@/chat/chat_list";

export const queryClient = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 30_000,
      refetchOnWindowFocus: false,
      // Refusals are not retried; only lost responses and server errors are.
      retry: (count, error) => count < 2 && !(error instanceof ApiError && error.status < 500),
    },
  },
});

export const keys = {
  me: ["me"] as const,
  models: ["models"] as const,
  preferences: ["preferences"] as const,
  spend: ["spend"] as const,
  version: ["version"] as const,
  chat: (id: string) => ["chat", id] as const,
  agents: (id: string) => ["agents", id] as const,
  cost: (id: string) => ["cost", id] as const,
  prompts: (id: string) => ["prompts", id] as const,
};

export const useMe = () => useQuery({ queryKey: keys.me, queryFn: account.getMe, staleTime: 5 * 60_000 });
export const useModels = () => useQuery({ queryKey: keys.models, queryFn: account.listModels, staleTime: 60_000 });
export const usePreferences = () =>
  useQuery({ queryKey: keys.preferences, queryFn: account.getPreferences, staleTime: 5 * 60_000 });
export const useChat = (id: string) =>
  useQuery({ queryKey: keys.chat(id), queryFn: ({ signal }) => chats.getChat(id, signal), staleTime: 60_000 });
export const useCost = (id: string, enabled: boolean) =>
  useQuery({ queryKey: keys.cost(id), queryFn: () => chats.getCost(id), enabled, staleTime: 10_000 });

/** Update a chat in the cache, unless the cached one is newer. */
export function noteChat(news: ChatView): void {
  queryClient.setQueryData<ChatView>(keys.chat(news.id), (known) => (known ? mergeChat(known, news) : news));
}

export interface KnownModel extends ModelView {
  provider: ModelsOfProvider;
}

/** Return all models with their providers, usable or not. The array is stable, because rows depend on it. */
export function useKnownModels(): KnownModel[] {
  const { data } = useModels();
  return useMemo(
    () => (data?.providers ?? []).flatMap((provider) => provider.models.map((model) => ({ ...model, provider }))),
    [data],
  );
}

/** Return the percentage of the context at which chats with this model are summarized: the user's setting, else the model's. */
export function useThreshold(modelConfigId: string | null): number {
  const { data } = usePreferences();
  const model = useKnownModels().find((one) => one.id === modelConfigId);
  const own = modelConfigId === null ? undefined : data?.compaction_thresholds[modelConfigId];
  return own ?? model?.compression_threshold ?? 70;
}

/** Display settings that apply in all browsers of a user. */
export interface Display {
  enterSends: boolean;
  /** What Enter does while a turn runs. */
  busySend: "queue" | "steer";
  followAgent: boolean;
  groupTools: boolean;
  reasoningMode: "auto" | "preview" | "open" | "closed";
  fullWidth: boolean;
}

export const DISPLAY: Display = {
  enterSends: true,
  busySend: "queue",
  followAgent: true,
  groupTools: true,
  reasoningMode: "auto",
  fullWidth: false,
};

/** Return the display settings or their defaults. `loaded`: loading has ended; `known`: they come from the server. */
export function useDisplay(): Display & { loaded: boolean; known: boolean } {
  const { data, isError } = usePreferences();
  const given = (data?.display ?? {}) as Record<string, unknown>;
  const pick = <K extends keyof Display>(key: K): Display[K] => {
    const value = given[snake(key)];
    return typeof value === typeof DISPLAY[key] ? (value as Display[K]) : DISPLAY[key];
  };
  return {
    enterSends: pick("enterSends"),
    busySend: pick("busySend") === "steer" ? "steer" : "queue",
    followAgent: pick("followAgent"),
    groupTools: pick("groupTools"),
    reasoningMode: pick("reasoningMode"),
    fullWidth: pick("fullWidth"),
    loaded: data !== undefined || isError,
    known: data !== undefined,
  };
}

function snake(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}
