/** The menu of the message box: commands and skills after `/`, files after `@`. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { BookOpen, File as FileIcon, Folder } from "lucide-react";
import { createElement } from "react";
import { listSavedPrompts, type PromptScope } from "@/api/saved_prompts";
import { type FilesOf, getContext, listFolder } from "@/api/workspaces";
import { knownPaths } from "@/chat/edited_files";
import { mentionAt } from "@/chat/file_references";
import { COMMANDS, commandQuery, fittingSkills } from "@/features/composer/commands";
import { chatSession } from "@/state/chat_sessions";
import type { Option } from "@/ui/combobox";

const MOST_KNOWN = 5;
const MOST_ENTRIES = 50;

interface Wanted {
  /** The result of `askedAt`. */
  asked: string | null;
  chatId: string | null;
  /** The workspace whose files and skills are offered: that of the chat, or the one chosen for a new chat. */
  workspaceId: string | null;
}

export interface Suggestions {
  label: string;
  options: Option[];
  /** Whether the text asks for a menu, even if nothing matches. */
  isAsked: boolean;
}

// A prefix that distinguishes ids of skills from ids of commands.
const SKILL = "skill ";
const PROMPT = "prompt ";
const MOST_PROMPTS = 8;

/** Return the skill of an option; null for other options. */
export const pickedSkill = (id: string) => (id.startsWith(SKILL) ? id.slice(SKILL.length) : null);

/** Return the scope and the name of the saved prompt of an option; null for other options. */
export const pickedPrompt = (id: string) =>
  id.startsWith(PROMPT) ? (id.slice(PROMPT.length).split(" ") as [PromptScope, string]) : null;

function filesOf(chatId: string | null, workspaceId: string | null): FilesOf | null {
  if (workspaceId === null) return null;
  return chatId === null ? { workspace: workspaceId } : { chat: chatId };
}

/** Return the partial name at the caret with its prefix: `/` for a command or skill, `@` for a path. */
export function askedAt({ text, caret }: { text: string; caret: number }): string | null {
  const command = commandQuery(text);
  if (command !== null) return `/${command}`;
  const name = text.includes("@") ? mentionAt(text, caret) : null;
  return name && `@${name.query}`;
}

const described = (text: string) =>
  createElement("span", { className: "inline-block max-w-72 truncate align-bottom max-sm:max-w-40" }, text);

export function useSuggestions({ asked, chatId, workspaceId }: Wanted): Suggestions {
  const command = asked?.startsWith("/") ? asked.slice(1) : null;
  const files = filesOf(chatId, workspaceId);
  const name = asked?.startsWith("@") && (chatId !== null || files !== null) ? asked.slice(1) : null;
  const folder = name?.slice(0, name.lastIndexOf("/") + 1) ?? "";
  const { data } = useQuery({
    queryKey: ["folder", files, folder],
    queryFn: ({ signal }) => listFolder(files ?? { chat: "" }, folder, signal),
    enabled: name !== null && files !== null,
    retry: false,
    staleTime: 10_000,
    placeholderData: keepPreviousData,
  });
  const context = useQuery({
    queryKey: ["context", chatId],
    queryFn: () => getContext(chatId ?? ""),
    enabled: command !== null && chatId !== null && workspaceId !== null,
    retry: false,
  });
  const prompts = useQuery({
    queryKey: ["saved_prompts", command],
    queryFn: ({ signal }) => listSavedPrompts({ q: command ?? "", limit: MOST_PROMPTS }, signal),
    enabled: command !== null && !command.includes("/"),
    retry: false,
    placeholderData: keepPreviousData,
  });
  if (command !== null) {
    const fitting = COMMANDS.filter((one) => one.name.startsWith(command) && (chatId !== null || !one.needsChat));
    const skills = chatId !== null && workspaceId !== null ? fittingSkills(context.data?.items ?? [], command) : [];
    const options: Option[] = [
      ...fitting.map((one) => ({ id: one.name, label: `/${one.name}`, detail: one.help })),
      ...skills.map((one) => ({
        id: `${SKILL}${one.alias}`,
        label: `/${one.alias}`,
        detail: described(one.description),
        group: "Skills",
        icon: createElement(BookOpen),
      })),
      ...(prompts.data?.items ?? [])
        .filter((one) => `${one.name} ${one.summary}`.toLowerCase().includes(command))
        .map((one) => ({
          id: `${PROMPT}${one.scope} ${one.name}`,
          label: `/${one.name}`,
          detail: described(one.summary),
          group: "Saved prompts",
        })),
    ];
    return { label: "Commands", options, isAsked: options.length > 0 };
  }
  if (name === null) return { label: "", options: [], isAsked: false };
  const wanted = name.toLowerCase();
  const messages = chatId === null ? [] : chatSession(chatId).store.getState().data.messages.values();
  const known = knownPaths(messages)
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
