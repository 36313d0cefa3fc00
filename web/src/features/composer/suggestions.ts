/** What the box offers while something is typed: commands behind `/`, files behind `@`. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { File as FileIcon, Folder } from "lucide-react";
import { createElement } from "react";
import { listFolder } from "@/api/workspaces";
import { knownPaths } from "@/chat/changes";
import { mentionAt } from "@/chat/references";
import { COMMANDS, commandQuery } from "@/features/composer/commands";
import { chatSession } from "@/state/chat_sessions";
import type { Option } from "@/ui/combobox";

const MOST_KNOWN = 5;
const MOST_ENTRIES = 50;

interface Typed {
  text: string;
  caret: number;
  chatId: string | null;
  /** The chat has a workspace whose files can be listed. */
  hasFiles: boolean;
  isClosed: boolean;
}

export interface Suggestions {
  label: string;
  options: Option[];
  /** Something is being asked for, though nothing may match. */
  isAsked: boolean;
}

export function useSuggestions({ text, caret, chatId, hasFiles, isClosed }: Typed): Suggestions {
  const command = isClosed ? null : commandQuery(text);
  const name = isClosed || command !== null || chatId === null ? null : mentionAt(text, caret);
  const folder = name ? name.query.slice(0, name.query.lastIndexOf("/") + 1) : "";
  const { data } = useQuery({
    queryKey: ["folder", chatId, folder],
    queryFn: ({ signal }) => listFolder(chatId ?? "", folder, signal),
    enabled: name !== null && hasFiles,
    retry: false,
    staleTime: 10_000,
    placeholderData: keepPreviousData,
  });
  if (command !== null) {
    const fitting = COMMANDS.filter((one) => one.name.startsWith(command) && (chatId !== null || !one.needsChat));
    const options = fitting.map((one) => ({ id: one.name, label: `/${one.name}`, detail: one.help }));
    return { label: "Commands", options, isAsked: options.length > 0 };
  }
  if (!name || chatId === null) return { label: "", options: [], isAsked: false };
  const wanted = name.query.toLowerCase();
  const known = knownPaths(chatSession(chatId).store.getState().data.messages.values())
    .filter((path) => path.toLowerCase().includes(wanted))
    .slice(0, MOST_KNOWN);
  const entries = (data?.path === folder ? data.entries : [])
    .map((entry) => ({ path: `${folder}${entry.name}${entry.is_dir ? "/" : ""}`, ...entry }))
    .filter((entry) => entry.path.toLowerCase().startsWith(wanted) && !known.includes(entry.path))
    .slice(0, MOST_ENTRIES);
  const options: Option[] = [
    ...known.map((path) => ({ id: path, label: path, group: "In this chat", icon: createElement(FileIcon) })),
    ...entries.map((entry) => ({
      id: entry.path,
      label: entry.name,
      group: folder || "Workspace",
      icon: createElement(entry.is_dir ? Folder : FileIcon),
    })),
  ];
  return { label: "Files", options, isAsked: options.length > 0 };
}
