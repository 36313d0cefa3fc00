// @vitest-environment happy-dom
import { act } from "react";
import { afterEach, expect, test, vi } from "vitest";
import { ChatPage } from "@/testing/chat_page";
import { hello, status, synced } from "@/testing/stream";

let page: ChatPage;
afterEach(() => page.close());

const asks = (id: string) => ({
  type: "action_required",
  kind: "approval",
  tool_calls: [{ tool_call_id: id, tool_name: "bash", args: { command: `echo ${id}` }, always: null }],
  deadline_at: null,
});

test("what was typed to deny one call is not there for the next, which may come in the same moment", async () => {
  page = new ChatPage(() => undefined);
  await page.say(hello(), status("requires_action"), asks("one"), synced(1, 0));
  // The card is loaded on demand.
  await act(async () => void (await vi.dynamicImportSettled()));
  await page.press("Deny");
  const reason = page.find("[aria-label='Why not']") as HTMLInputElement;
  await act(async () => {
    Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value")?.set?.call(reason, "Not yet.");
    reason.dispatchEvent(new Event("input", { bubbles: true }));
  });

  await page.say(status("running"), status("requires_action"), asks("two"), synced(2, 0));
  expect(page.text("[data-testid=approval]").join()).toContain("echo two");
  expect(page.text("[data-testid=approval] button")).toEqual(expect.arrayContaining(["Deny", "Approve"]));
  await page.press("Deny");
  expect((page.find("[aria-label='Why not']") as HTMLInputElement).value).toBe("");
});

test("what is being typed to deny stays when the line comes back", async () => {
  page = new ChatPage(() => undefined);
  await page.say(hello(), status("requires_action"), asks("one"), synced(1, 0));
  // The card is loaded on demand.
  await act(async () => void (await vi.dynamicImportSettled()));
  await page.press("Deny");
  await page.say(hello(), status("requires_action"), asks("one"), synced(1, 0));
  page.find("[aria-label='Why not']");
});

test("a denial can be canceled, and the answers are back", async () => {
  page = new ChatPage(() => undefined);
  await page.say(hello(), status("requires_action"), asks("one"), synced(1, 0));
  // The card is loaded on demand.
  await act(async () => void (await vi.dynamicImportSettled()));
  await page.press("Deny");
  expect(page.text("[data-testid=approval] button")).toEqual(expect.arrayContaining(["Cancel", "Deny"]));
  await page.press("Cancel");
  expect(page.text("[data-testid=approval] button")).toEqual(expect.arrayContaining(["Deny", "Approve"]));
  expect(page.asked.filter((one) => one.path.endsWith("/approvals"))).toEqual([]);
});
