import { del, get, put } from "@/api/http";
import type { SavedPrompt, SavedPromptPage } from "@/api/types.gen";

export type PromptScope = "user" | "deployment";

const at = (name: string, scope: PromptScope) => `/saved-prompts/${encodeURIComponent(name)}?scope=${scope}`;

export const listSavedPrompts = (query: { q?: string; limit?: number; cursor?: string }, signal?: AbortSignal) =>
  get<SavedPromptPage>("/saved-prompts", query, signal);
export const getSavedPrompt = (name: string, scope: PromptScope) => get<SavedPrompt>(at(name, scope));
export const putSavedPrompt = (name: string, scope: PromptScope, text: string) =>
  put<SavedPrompt>(at(name, scope), { text });
export const deleteSavedPrompt = (name: string, scope: PromptScope) => del(at(name, scope));
