import { del, get, patch, post } from "@/api/http";
import type {
  AccessPage,
  AgentList,
  ChatListPage,
  ChatView,
  CostView,
  CreateBody,
  EditBody,
  EditView,
  ItemsOfPrompt,
  ItemsOfSearchMatch,
  MessagesView,
  MessageView,
  PatchBody,
  PromoteView,
  QueuedMessageView,
  QueuedPatchBody,
  QueueView,
  SendBody,
  SendView,
  TitleView,
  ToolResultInput,
} from "@/api/types.gen";

const at = (chat: string, rest = "") => `/chats/${encodeURIComponent(chat)}${rest}`;

export interface ChatListQuery {
  q?: string;
  label?: string;
  workspace_id?: string;
  cursor?: string;
  limit?: number;
  [key: string]: string | number | undefined;
}

export const listChats = (query: ChatListQuery, signal?: AbortSignal) => get<ChatListPage>("/chats", query, signal);
export const getChat = (chat: string, signal?: AbortSignal) => get<ChatView>(at(chat), undefined, signal);
export const createChat = (body: CreateBody, key: string) => post<ChatView>("/chats", body, { "Idempotency-Key": key });
export const patchChat = (chat: string, body: PatchBody) => patch<ChatView>(at(chat), body);
export const deleteChat = (chat: string) => del(at(chat));
export const markRead = (chat: string, messageId: number) => post<void>(at(chat, "/read"), { message_id: messageId });

export const listMessages = (chat: string, query: { before_id?: number; around_id?: number; limit?: number }) =>
  get<MessagesView>(at(chat, "/messages"), query);
export const sendMessage = (chat: string, body: SendBody) => post<SendView>(at(chat, "/messages"), body);
export const editMessage = (chat: string, message: number, body: EditBody) =>
  patch<EditView>(at(chat, `/messages/${message}`), body);
export const submitToolResults = (chat: string, results: ToolResultInput[]) =>
  post<void>(at(chat, "/tool-results"), { results });
export const listPrompts = (chat: string) => get<ItemsOfPrompt>(at(chat, "/prompts"));
export const searchChat = (chat: string, q: string, signal?: AbortSignal) =>
  get<ItemsOfSearchMatch>(at(chat, "/search"), { q, limit: 200 }, signal);
export const getMessage = (chat: string, message: number) => get<MessageView>(at(chat, `/messages/${message}`));

export const listQueue = (chat: string) => get<QueueView>(at(chat, "/queue"));
export const deleteQueued = (chat: string, id: number) => del(at(chat, `/queue/${id}`));
export const editQueued = (chat: string, id: number, body: QueuedPatchBody) =>
  patch<QueuedMessageView>(at(chat, `/queue/${id}`), body);
export const promoteQueued = (chat: string, id: number) => post<PromoteView>(at(chat, `/queue/${id}/promote`));
export const moveQueued = (chat: string, id: number, before: number | null) =>
  post<QueueView>(at(chat, `/queue/${id}/move`), { before });

export const interrupt = (chat: string) => post<ChatView>(at(chat, "/interrupt"));
export const retryTurn = (chat: string) => post<ChatView>(at(chat, "/retry"));
export const nudge = (chat: string) => post<ChatView>(at(chat, "/nudge"));
export const compact = (chat: string) => post<ChatView>(at(chat, "/compact"));
export const reconcileInvalid = (chat: string) => post<ChatView>(at(chat, "/reconcile-invalid"));
export const proposeTitle = (chat: string) => post<TitleView>(at(chat, "/title/propose"));
export const listAccesses = (chat: string) => get<AccessPage>(at(chat, "/accesses"), { limit: 100 });
export const listAgents = (chat: string, signal?: AbortSignal) =>
  get<AgentList>(at(chat, "/agents"), undefined, signal);
export const getCost = (chat: string) => get<CostView>(at(chat, "/cost"));
