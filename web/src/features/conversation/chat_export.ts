import { plainText } from "@/chat/pending_operations";
import { noticeTitle } from "@/chat/subagent_texts";
import { isNotice } from "@/chat/timeline_rows";
import type { Message } from "@/chat/types";
import { download } from "@/features/timeline/code_block";
import type { ChatSession } from "@/state/chat_session";

/** Return a chat as Markdown: the texts, and one line for each tool call. */
export function toMarkdown(title: string, messages: readonly Message[]): string {
  const parts = [`# ${title}`];
  let speaker = "";
  for (const message of messages) {
    for (const part of message.content) {
      if (part.type === "agent-notice") parts.push(`> ${noticeTitle(part)}`, part.report ?? "");
    }
    if (isNotice(message)) continue;
    if (message.role === "user") {
      parts.push(`## You\n\n${plainText(message.content)}`);
      speaker = "user";
      continue;
    }
    const said = message.content.flatMap((part) => {
      if (part.type === "text" && part.text.trim()) return [part.text];
      if (part.type === "tool-call")
        return [`> ${part.tool_name}: \`${JSON.stringify(part.args ?? {}).slice(0, 200)}\``];
      return [];
    });
    if (said.length === 0) continue;
    // A turn of several steps has one heading.
    if (speaker !== "agent") parts.push("## Agent");
    speaker = "agent";
    parts.push(...said);
  }
  return `${parts.join("\n\n")}\n`;
}

/** Return the title as a file name that every system accepts. */
export function fileName(title: string): string {
  return (
    title
      .replace(/[^\p{L}\p{N}_ -]+/gu, " ")
      .replace(/\s+/g, " ")
      .trim() || "chat"
  );
}

/** Return a chat as JSON, with its messages as the API returns them. */
export function toJson(chatId: string, title: string, messages: readonly Message[]): string {
  return `${JSON.stringify({ chat_id: chatId, title, messages }, null, 2)}\n`;
}

/** Load the whole chat and save it as a file. */
export async function exportChat(session: ChatSession, title: string, format: "markdown" | "json"): Promise<void> {
  await session.loadUntil(0);
  const { messages, order } = session.store.getState().data;
  const all = order.flatMap((id) => messages.get(id) ?? []);
  const name = fileName(title);
  if (format === "json") download(toJson(session.id, title, all), `${name}.json`, "application/json");
  else download(toMarkdown(title, all), `${name}.md`, "text/markdown");
}
