// @vitest-environment happy-dom
import { QueryClientProvider } from "@tanstack/react-query";
import { act } from "react";
import { afterEach, expect, test, vi } from "vitest";
import type { Recording } from "@/api/debug";
import type { ChatView } from "@/api/types.gen";
import { RecordingBar } from "@/features/debug/recording";
import { OwnRecording } from "@/features/settings/debug";
import { keys, queryClient } from "@/state/queries";
import { type Mounted, mount } from "@/testing/mount";

const pages: Mounted[] = [];
const FREE: Recording = { mode: "inherit", is_on: false, is_forced: false, is_allowed: true };
const OWN = { id: "c", my_role: "owner", parent_chat_id: null } as ChatView;

function show(recording: Recording, chat: ChatView = OWN): HTMLElement {
  const page = mount(<RecordingBar chat={chat} recording={recording} />);
  pages.push(page);
  return page.element;
}

afterEach(() => {
  for (const page of pages.splice(0)) page.unmount();
  queryClient.clear();
  vi.unstubAllGlobals();
});

test("the owner of a chat chooses whether it is recorded, and is warned", async () => {
  const sent: unknown[] = [];
  vi.stubGlobal("fetch", async (url: string, init: RequestInit) => {
    sent.push([init.method, url, JSON.parse(String(init.body))]);
    return Response.json({ id: "c", snapshot_version: 1 });
  });
  const element = show(FREE);
  expect(element.textContent).toContain("Records can contain sensitive text");
  const choice = element.querySelector("select");
  expect(choice?.selectedOptions[0]?.textContent).toBe("As in your settings (off)");

  await act(async () => {
    if (choice) choice.value = "on";
    choice?.dispatchEvent(new Event("change", { bubbles: true }));
  });

  expect(sent).toEqual([["PATCH", "/api/v1/chats/c", { debug_mode: "on" }]]);
});

test("the choice cannot be made where the operator decided, and is hidden where it is not the user's", () => {
  const forced = show({ ...FREE, is_on: true, is_forced: true });
  expect(forced.querySelector("select")).toBeNull();
  expect(forced.textContent).toContain("The operator of this server records all chats.");
  for (const element of [
    show({ ...FREE, is_allowed: false }),
    show(FREE, { ...OWN, my_role: "reader" } as unknown as ChatView),
    show(FREE, { ...OWN, parent_chat_id: "p" }),
  ]) {
    expect(element.querySelector("select")).toBeNull();
    expect(element.textContent).toBe("Records can contain sensitive text from prompts, files and answers.");
  }
});

function own(values: object): HTMLElement {
  queryClient.setQueryData(keys.version, { version: "1", features: ["debug"] });
  queryClient.setQueryData(keys.preferences, { debug: false, display: {} });
  queryClient.setQueryData(["settings", "debug"], { values, pinned: [], updated_at: null });
  const page = mount(
    <QueryClientProvider client={queryClient}>
      <OwnRecording />
    </QueryClientProvider>,
  );
  pages.push(page);
  return page.element;
}

test("the user's own switch is hidden, usable or locked, as the policy says", () => {
  const state = (element: HTMLElement) => {
    const button = element.querySelector<HTMLButtonElement>("[role=switch]");
    return button && [button.getAttribute("aria-checked"), button.disabled];
  };
  expect(state(own({ allow_users: false, forced: false }))).toBeNull();
  expect(state(own({ allow_users: true, forced: false }))).toEqual(["false", false]);
  expect(state(own({ allow_users: false, forced: true }))).toEqual(["true", true]);
});
