import { expect, test } from "vitest";
import type { ChatView } from "@/api/types.gen";
import {
  dateSection,
  filterCount,
  filterFrom,
  filterQuery,
  lineOf,
  markOf,
  NO_FILTER,
  sectionsOf,
  withChat,
  withFilter,
} from "@/chat/sidebar_list";

const NOW = new Date(2026, 5, 15, 12, 0);

function chat(change: Partial<ChatView> = {}): ChatView {
  return {
    id: "a",
    root_chat_id: "a",
    parent_chat_id: null,
    my_role: "owner",
    title: "One",
    status: "waiting",
    archived: false,
    labels: {},
    pin_order: null,
    has_unread: false,
    needs_user: null,
    last_error: null,
    last_turn_summary: null,
    summary: null,
    last_activity_at: NOW.toISOString(),
    snapshot_version: 1,
    meta_version: 1,
    ...change,
  } as ChatView;
}

test("filters go into the address and come back, and leave the rest of it alone", () => {
  const params = new URLSearchParams("panel=info&archived=1&source=shared&label=team:a&label=x&group=status");
  const filter = filterFrom(params);
  expect(filter).toEqual({
    archived: true,
    source: "shared",
    unread: false,
    labels: ["team:a"],
    folder: "",
    group: "status",
  });
  const back = withFilter(params, { ...filter, archived: false });
  expect(back.get("panel")).toBe("info");
  expect(back.has("archived")).toBe(false);
  expect(back.getAll("label")).toEqual(["team:a"]);
});

test("filters are asked of the server in its words", () => {
  expect(filterQuery({ ...NO_FILTER, unread: true, labels: ['team:a "b"'] })).toBe(
    'source:created_by_me,shared_with_me archived:false has_unread:true label:"team=a \\"b\\""',
  );
});

test("an event that came late takes nothing back", () => {
  const git = { root: "/a", branch: null, remote_origin: null, additions: 1, deletions: 0, changed_files: 1 };
  const context = { dirty: true, dirty_since: "2026-06-15T12:00:00Z", error: null };
  const newer = chat({ meta_version: 2, context, git: { ...git, additions: 9, refreshed_at: "2026-06-15T12:00:05Z" } });
  const late = chat({ context: null, git: { ...git, refreshed_at: "2026-06-15T12:00:01Z" } });

  const [merged] = withChat([newer], late, NO_FILTER) ?? [];
  expect([merged?.git?.additions, merged?.context]).toEqual([9, context]);
});

test("an event changes, adds or removes a row as the filter says", () => {
  const list = [chat()];
  expect(withChat(list, chat({ title: "New", snapshot_version: 2 }), NO_FILTER)?.[0]?.title).toBe("New");
  expect(withChat(list, chat({ id: "b", root_chat_id: "b" }), NO_FILTER)?.length).toBe(2);
  expect(withChat(list, chat({ archived: true }), NO_FILTER)).toEqual([]);
  expect(withChat(list, chat({ id: "b", archived: true }), NO_FILTER)).toBeNull();
  const unread = [chat({ has_unread: true })];
  expect(withChat(unread, chat({ snapshot_version: 2 }), { ...NO_FILTER, unread: true })?.length).toBe(1);
});

test("a child goes to its root", () => {
  const child = chat({ id: "c", parent_chat_id: "a", root_chat_id: "a", status: "running" });
  const list = withChat([chat()], child, NO_FILTER) ?? [];
  expect(lineOf(list[0] ?? chat())).toBe("1 agent working");
});

test("marks tell what matters most", () => {
  expect(markOf(chat({ status: "running" }))).toBe("working");
  expect(markOf(chat({ status: "running", queued_for_capacity: true }))).toBe("slot");
  expect(markOf(chat({ status: "waiting", needs_user: "plan", has_unread: true }))).toBe("needs");
  expect(markOf(chat({ status: "error" }))).toBe("failed");
  expect(markOf(chat({ has_unread: true }))).toBe("unread");
});

test("days are those of the reader's calendar", () => {
  expect(dateSection(new Date(2026, 5, 15, 0, 0), NOW)[0]).toBe("today");
  expect(dateSection(new Date(2026, 5, 14, 23, 59), NOW)[0]).toBe("yesterday");
  expect(dateSection(new Date(2026, 5, 9), NOW)[0]).toBe("week");
  expect(dateSection(new Date(2026, 5, 8, 23), NOW)[0]).toBe("month");
  expect(dateSection(new Date(2026, 3, 1), NOW)[0]).toBe("older");
});

test("sections come in order, pinned by their own, each chat once", () => {
  const list = [
    chat({ id: "p2", pin_order: 2 }),
    chat({ id: "p1", pin_order: 1 }),
    chat({ id: "s", my_role: "reader" }),
    chat({ id: "t" }),
    chat({ id: "t" }),
  ];
  const found = sectionsOf(list, NO_FILTER, NOW).map((one) => [one.id, one.chats.map((each) => each.id)]);
  expect(found).toEqual([
    ["pinned", ["p1", "p2"]],
    ["today", ["t"]],
    ["shared", ["s"]],
  ]);
});

test("grouped by status, the sections are the states of the chats", () => {
  const list = [
    chat({ id: "done" }),
    chat({ id: "unread", has_unread: true }),
    chat({ id: "failed", status: "error", has_unread: true }),
    chat({ id: "stopping", status: "interrupting" }),
    chat({ id: "asks", status: "requires_action" }),
  ];
  const found = sectionsOf(list, { ...NO_FILTER, group: "status" }, NOW).map((one) => [
    one.title,
    one.chats.map((each) => each.id),
  ]);
  expect(found).toEqual([
    ["Needs you", ["asks"]],
    ["Working", ["stopping"]],
    ["Failed", ["failed"]],
    ["Idle", ["unread", "done"]],
  ]);
});

test("a root says that one of its subagents needs the user", () => {
  const root = {
    ...chat(),
    children: [
      { ...chat(), status: "running" },
      { ...chat(), status: "requires_action" },
    ],
  };
  expect(lineOf(root)).toBe("An agent needs you");
  expect(markOf(root)).toBe("needs");
});

test("the filter by folder goes into the address and the query, and matches the chats of the folder", () => {
  const filter = { ...NO_FILTER, folder: "f1" };
  expect(withFilter(new URLSearchParams("x=1"), filter).toString()).toBe("x=1&folder=f1");
  expect(filterFrom(new URLSearchParams("folder=f1"))).toEqual(filter);
  expect(filterQuery(filter)).toContain('folder:"f1"');
  expect(filterCount(filter)).toBe(1);
  expect(withChat([], chat({ folder_id: "f1" }), filter)).toHaveLength(1);
  expect(withChat([], chat({ folder_id: "f2" }), filter)).toBeNull();
  // A chat that leaves the folder leaves the list.
  expect(withChat([chat({ folder_id: "f1" })], chat({ folder_id: null }), filter)).toEqual([]);
});
