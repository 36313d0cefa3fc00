import { expect, test } from "vitest";
import type { Message } from "@/chat/types";
import { fileName, toMarkdown } from "@/features/conversation/chat_export";

const message = (role: string, ...content: object[]) => ({ role, content }) as unknown as Message;
const text = (words: string) => ({ type: "text", text: words });

test("the Markdown says who speaks, with one heading for the steps of a turn", () => {
  const found = toMarkdown("Plan", [
    message("user", text("List the files")),
    message("assistant", text("I will look."), { type: "tool-call", tool_name: "execute", args: { command: "ls" } }),
    message("assistant", text("There are two.")),
    message("user", text("Thanks")),
    message("assistant", text("You are welcome.")),
  ]);

  expect(found.match(/^## .*/gm)).toEqual(["## You", "## Agent", "## You", "## Agent"]);
  expect(found).toContain('> execute: `{"command":"ls"}`\n\nThere are two.');
});

test("the name of the file has single spaces and keeps letters of every language", () => {
  expect(fileName("Run `ls /etc | wc -l` > echo.md")).toBe("Run ls etc wc -l echo md");
  expect(fileName("Grüße 東京")).toBe("Grüße 東京");
  expect(fileName("??")).toBe("chat");
});
