import type { ChatView } from "@/api/types.gen";
import { mergeChat, mergeIntoList } from "@/chat/chat_list";

/** The filter of the chat list. It is part of the URL, so that it survives navigation and can be linked to. */
export interface Filter {
  archived: boolean;
  source: "all" | "mine" | "shared";
  unread: boolean;
  /** `key:value` */
  labels: string[];
  /** The id of a folder; empty for all chats. */
  folder: string;
  group: "date" | "status";
}

export const NO_FILTER: Filter = {
  archived: false,
  source: "all",
  unread: false,
  labels: [],
  folder: "",
  group: "date",
};

export function filterFrom(params: URLSearchParams): Filter {
  const source = params.get("source");
  return {
    archived: params.get("archived") === "1",
    source: source === "mine" || source === "shared" ? source : "all",
    unread: params.get("unread") === "1",
    labels: params.getAll("label").filter((label) => /^[^:]+:.+$/.test(label)),
    folder: params.get("folder") ?? "",
    group: params.get("group") === "status" ? "status" : "date",
  };
}

/** Set the URL parameters of the filter. Other parameters are not changed. */
export function withFilter(params: URLSearchParams, filter: Filter): URLSearchParams {
  const next = new URLSearchParams(params);
  for (const name of ["archived", "source", "unread", "label", "folder", "group"]) next.delete(name);
  if (filter.archived) next.set("archived", "1");
  if (filter.source !== "all") next.set("source", filter.source);
  if (filter.unread) next.set("unread", "1");
  for (const label of filter.labels) next.append("label", label);
  if (filter.folder) next.set("folder", filter.folder);
  if (filter.group === "status") next.set("group", "status");
  return next;
}

/** Return the URL parameters of the filter, to keep them on another page. */
export function filterSearch(params: URLSearchParams): string {
  const kept = withFilter(new URLSearchParams(), filterFrom(params)).toString();
  return kept ? `?${kept}` : "";
}

/** Return the number of active filters. */
export function filterCount(filter: Filter): number {
  return +filter.archived + +(filter.source !== "all") + +filter.unread + +!!filter.folder + filter.labels.length;
}

const quoted = (value: string) => `"${value.replace(/["\\]/g, "\\$&")}"`;

/** Return the filter in the search syntax of the API. */
export function filterQuery(filter: Filter): string {
  const sources = { all: "created_by_me,shared_with_me", mine: "created_by_me", shared: "shared_with_me" };
  return [
    `source:${sources[filter.source]}`,
    `archived:${filter.archived}`,
    ...(filter.unread ? ["has_unread:true"] : []),
    ...(filter.folder ? [`folder:${quoted(filter.folder)}`] : []),
    ...filter.labels.map((label) => `label:${quoted(label.replace(":", "="))}`),
  ].join(" ");
}

/** Return whether a root chat matches the filter. */
export function matches(filter: Filter, chat: ChatView): boolean {
  if (chat.parent_chat_id !== null || chat.archived !== filter.archived) return false;
  const mine = chat.my_role === "owner";
  if (filter.source === "mine" && !mine) return false;
  if (filter.source === "shared" && chat.my_role !== "reader") return false;
  if (filter.unread && !chat.has_unread) return false;
  if (filter.folder && chat.folder_id !== filter.folder) return false;
  return filter.labels.every((label) => {
    const at = label.indexOf(":");
    return chat.labels[label.slice(0, at)] === label.slice(at + 1);
  });
}

/** Apply an event to the list. Return null if the event does not concern it. */
export function withChat(chats: readonly ChatView[], chat: ChatView, filter: Filter): readonly ChatView[] | null {
  const at = chats.findIndex((one) => one.id === chat.id);
  if (chat.parent_chat_id !== null || at < 0) {
    if (chat.parent_chat_id === null && matches(filter, chat)) return [chat, ...chats];
    const next = mergeIntoList(chats, chat);
    return next === chats ? null : next;
  }
  const merged = mergeChat(chats[at] ?? chat, chat);
  // The open chat stays in the list, although it is no longer unread.
  return matches({ ...filter, unread: false }, merged) ? chats.with(at, merged) : chats.toSpliced(at, 1);
}

export type Mark = "idle" | "unread" | "working" | "stopping" | "needs" | "slot" | "failed" | "archived";

export const MARK_NAMES: Record<Mark, string> = {
  idle: "Idle",
  unread: "Unread",
  working: "Working",
  stopping: "Stopping",
  needs: "Needs you",
  slot: "Waiting for a free slot",
  failed: "Failed",
  archived: "Archived",
};

/** Return whether a subagent of the chat waits for the user. */
const hasAskingAgent = (chat: ChatView) => (chat.children ?? []).some((child) => child.status === "requires_action");

export function markOf(chat: ChatView): Mark {
  if (chat.status === "requires_action" || chat.needs_user || hasAskingAgent(chat)) return "needs";
  if (chat.status === "interrupting") return "stopping";
  if (chat.status === "running") return chat.queued_for_capacity ? "slot" : "working";
  if (chat.archived) return "archived";
  if (chat.status === "error") return "failed";
  return chat.has_unread ? "unread" : "idle";
}

export const isBusy = (chat: ChatView) => chat.status === "running" || chat.status === "interrupting";

const NEEDS: Record<string, string> = {
  question: "Asks a question",
  plan: "Plan ready",
  tools: "Wants tool results",
  approval: "Asks for permission",
};

/** Return the second line of a row: the most important information about the chat. */
export function lineOf(chat: ChatView): string {
  if (chat.status === "error" && chat.last_error) return chat.last_error.message ?? "Failed";
  if (chat.needs_user) return NEEDS[chat.needs_user] ?? "Needs you";
  if (chat.status === "requires_action") return "Needs you";
  if (chat.status === "interrupting") return "Stopping";
  if (hasAskingAgent(chat)) return "An agent needs you";
  const agents = (chat.children ?? []).filter(isBusy).length;
  if (agents > 0) return `${agents} ${agents === 1 ? "agent" : "agents"} working`;
  if (chat.status === "running") return chat.queued_for_capacity ? "Waiting for a free slot" : "Working";
  return chat.last_turn_summary ?? chat.summary ?? "";
}

export interface Section {
  id: string;
  title: string;
  chats: ChatView[];
}

// Timestamps and ids sort correctly as strings.
const descending = (a: string, b: string) => (a === b ? 0 : a < b ? 1 : -1);
const byActivity = (a: ChatView, b: ChatView) =>
  descending(a.last_activity_at, b.last_activity_at) || descending(a.id, b.id);

/** Return the rows by section, without empty sections. `now` determines the current day. */
export function sectionsOf(chats: readonly ChatView[], filter: Filter, now: Date): Section[] {
  const found = new Map<string, Section>();
  const add = (id: string, title: string, chat: ChatView) => {
    const section = found.get(id) ?? { id, title, chats: [] };
    section.chats.push(chat);
    found.set(id, section);
  };
  const order = filter.group === "status" ? STATUS_ORDER : DATE_ORDER;
  const unique = [...new Map(chats.map((chat) => [chat.id, chat])).values()].sort(byActivity);
  for (const chat of unique) {
    if (chat.pin_order) add("pinned", "Pinned", chat);
    else if (chat.my_role !== "owner") add("shared", "Shared with you", chat);
    else if (filter.group === "status") add(...statusSection(chat), chat);
    else add(...dateSection(new Date(chat.last_activity_at), now), chat);
  }
  found.get("pinned")?.chats.sort((a, b) => (a.pin_order ?? 0) - (b.pin_order ?? 0));
  return order.flatMap((id) => found.get(id) ?? []);
}

const DATE_ORDER = ["pinned", "today", "yesterday", "week", "month", "older", "shared"];
const STATUS_ORDER = ["pinned", "needs", "working", "failed", "idle", "shared"];

/** Return the section of a state. The names are those that a search for `status:` knows. */
function statusSection(chat: ChatView): [string, string] {
  const mark = markOf(chat);
  if (mark === "needs") return ["needs", "Needs you"];
  if (mark === "working" || mark === "stopping" || mark === "slot") return ["working", "Working"];
  return chat.status === "error" ? ["failed", "Failed"] : ["idle", "Idle"];
}

/** Return the date section of a time, by days in the user's time zone. */
export function dateSection(at: Date, now: Date): [string, string] {
  const midnight = new Date(now.getFullYear(), now.getMonth(), now.getDate());
  const day = (back: number) => new Date(midnight.getFullYear(), midnight.getMonth(), midnight.getDate() - back);
  if (at >= midnight) return ["today", "Today"];
  if (at >= day(1)) return ["yesterday", "Yesterday"];
  if (at >= day(6)) return ["week", "This week"];
  if (at >= day(29)) return ["month", "This month"];
  return ["older", "Older"];
}

/** Return the number of unread root chats, for the page title. */
export const unreadCount = (chats: readonly ChatView[]) =>
  chats.filter((chat) => chat.has_unread && !chat.archived).length;
