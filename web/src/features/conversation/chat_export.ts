import { plainText } from "@/chat/pending_operations";
import { noticeTitle } from "@/chat/subagent_texts";
import { isNotice } from "@/chat/timeline_rows";
import type { Message } from "@/chat/types";
import { download } from "@/features/timeline/code_block";
import type { ChatSession } from "@/state/chat_session";

/** Return a chat as Markdown: the texts, and one line for each tool call. */
export function toMarkdown(title: string, messages: readonly Message[]): string {
  const parts = [`# ${title}`];
  for (const message of messages) {
    for (const part of message.content) {
      if (part.type === "agent-notice") parts.push(`> ${noticeTitle(part)}`, part.report ?? "");
    }
    if (isNotice(message)) continue;
    if (message.role === "user") {
      parts.push(`## You\n\n${plainText(message.content)}`);
      continue;
    }
    for (const part of message.content) {
      if (part.type === "text" && part.text.trim()) parts.push(part.text);
      else if (part.type === "tool-call")
        parts.push(`> ${part.tool_name}: \`${JSON.stringify(part.args ?? {}).slice(0, 200)}\``);
    }
  }
  return `${parts.join("\n\n")}\n`;
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
  const name = title.replace(/[^\w -]+/g, "").trim() || "chat";
  if (format === "json") download(toJson(session.id, title, all), `${name}.json`, "application/json");
  else download(toMarkdown(title, all), `${name}.md`, "text/markdown");
}
