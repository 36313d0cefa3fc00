import { expect, test } from "vitest";
import type { Message } from "@/chat/types";
import { alwaysOffers, matchingCommands } from "./always_rules";

const call = (command: string, always: object | null) =>
  ({ tool_call_id: "now", tool_name: "execute", args: { command }, always }) as never;

const ran = (...commands: string[]) =>
  commands.map((command, id) => ({
    id,
    content: [{ type: "tool-call", tool_name: "execute", tool_call_id: `c${id}`, args: { command } }],
  })) as unknown as Message[];

const PUSH = {
  chat: {},
  user: { command: "git push origin main" },
  program: { command: "git push *" },
};

test("the exact command, its program and the tool in this chat are offered", () => {
  expect(alwaysOffers(call("git push origin main", PUSH)).map((one) => [one.label, one.scope, one.match])).toEqual([
    ["This exact command in this chat", "chat", { command: "git push origin main" }],
    ["This exact command in all my chats", "user", { command: "git push origin main" }],
    ["git push with any arguments in this chat", "chat", { command: "git push *" }],
    ["git push with any arguments in all my chats", "user", { command: "git push *" }],
    ["This tool in this chat", "chat", {}],
  ]);
  expect(alwaysOffers(call("x", null))).toEqual([]);
});

test("the preview lists earlier commands that the pattern allows, and none that join another command", () => {
  const asked = call("git push origin main", PUSH);
  const earlier = ran("git push --force", "git push; rm -rf /", "git pull", "git push $(x)", "git push a ../b");
  const offers = alwaysOffers(asked);
  const program = offers.find((one) => one.match.command === "git push *");
  const exact = offers[0];
  if (!program || !exact) throw new Error("missing offers");
  expect(matchingCommands(program, asked, earlier)).toEqual(["git push --force"]);
  expect(matchingCommands(exact, asked, earlier)).toEqual([]);
});
