// @vitest-environment happy-dom
import { QueryClientProvider } from "@tanstack/react-query";
import { act } from "react";
import { afterEach, expect, test, vi } from "vitest";
import type { ChatView } from "@/api/types.gen";
import { ChangesTab } from "@/features/panel/changes_tab";
import { keys, queryClient } from "@/state/queries";
import { later } from "@/testing/chat_page";
import { mount } from "@/testing/mount";

afterEach(() => vi.unstubAllGlobals());

test("the working tree is shown also where the page was there before the server said that it has workspaces", async () => {
  const version = later();
  vi.stubGlobal("fetch", async () => version.answer);
  queryClient.clear();
  queryClient.setQueryData(keys.me, { id: "u" });
  const chat = { id: "c", my_role: "viewer", workspace_id: "w" } as unknown as ChatView;
  const { element, unmount } = mount(
    <QueryClientProvider client={queryClient}>
      <ChangesTab chat={chat} />
    </QueryClientProvider>,
  );
  const compared = () => element.querySelector<HTMLSelectElement>("[aria-label='What is compared']")?.value;
  expect(compared()).toBe("chat");

  await version.give(Response.json({ version: "1", features: ["workspaces"] }));

  await vi.waitFor(async () => {
    await act(async () => {});
    expect(compared()).toBe("tree");
  });
  unmount();
});
