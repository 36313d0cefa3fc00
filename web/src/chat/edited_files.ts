/** Edits of a chat by file, from the results of its tools. Changes made by commands are not included. */

import type { Message } from "@/chat/types";
import { type DiffFile, editedFile } from "@/lib/diff";
import { fields, list, text } from "./tool_texts";

/** Return the edited files in the order of their first edit. */
export function changedFiles(messages: Iterable<Message>): DiffFile[] {
  const found = new Map<string, string[]>();
  const calls = new Map<string, unknown>();
  const note = (path: string, diff: string) => {
    if (path && diff) found.set(path, [...(found.get(path) ?? []), diff]);
  };
  for (const message of messages) {
    for (const part of message.content) {
      if (part.type === "tool-call") calls.set(part.tool_call_id, part.args);
      if (part.type !== "tool-result" || part.is_error) continue;
      const result = fields(part.result);
      if (part.tool_name === "edit_files") {
        for (const file of list(result.files)) note(text(file.path), text(file.diff));
      } else if (part.tool_name === "write_file") {
        note(text(result.path) || text(fields(calls.get(part.tool_call_id)).path), text(result.diff));
      }
    }
  }
  return [...found].map(([path, diffs]) => editedFile(path, diffs));
}

/** Return the messages from the last user message on. */
export function lastTurn(messages: readonly Message[]): readonly Message[] {
  const at = messages.findLastIndex((message) => message.role === "user");
  return at < 0 ? messages : messages.slice(at);
}

const MOST_PATHS = 200;

/** Return the files that tool calls of a chat named, newest first. */
export function knownPaths(messages: Iterable<Message>): string[] {
  const found = new Set<string>();
  for (const message of [...messages].sort((a, b) => b.id - a.id)) {
    for (const part of message.content) {
      if (part.type !== "tool-call") continue;
      const args = fields(part.args);
      for (const path of [text(args.path), ...list(args.files).map((file) => text(file.path))]) {
        if (path && !path.endsWith("/")) found.add(path);
      }
    }
    if (found.size >= MOST_PATHS) break;
  }
  return [...found];
}
