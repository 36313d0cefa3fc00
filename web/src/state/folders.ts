import { queryOptions, useQuery } from "@tanstack/react-query";
import { del, get, patch, post } from "@/api/http";
import type { ChatFolder, FolderChange, FolderColor, FolderCreate, ItemsOfChatFolder } from "@/api/types.gen";
import { queryClient } from "@/state/queries";
import { subscribeWatch } from "./chat_list_stream";

export const foldersQuery = queryOptions({
  queryKey: ["folders"],
  queryFn: async () => (await get<ItemsOfChatFolder>("/folders")).items,
  // Another tab or device may have changed them.
  refetchOnWindowFocus: true,
});

/** Return the user's folders by name; undefined until they are loaded. */
export const useFolders = (): ChatFolder[] | undefined => useQuery(foldersQuery).data;

export const reloadFolders = () => queryClient.invalidateQueries({ queryKey: foldersQuery.queryKey });

const RELOAD_MS = 500;
// The folder and the archive state of each chat, from events. They determine the number of chats in a folder.
const seen = new Map<string, string>();

/** Keep the numbers of chats up to date, also for changes by other clients. Return a function that stops it. */
export function followFolders(): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const reload = () => {
    clearTimeout(timer);
    timer = setTimeout(reloadFolders, RELOAD_MS);
  };
  const stop = subscribeWatch({
    onReload: reload,
    onGone: reload,
    onChat: (chat) => {
      const now = `${chat.folder_id} ${chat.archived}`;
      if (chat.parent_chat_id === null && seen.get(chat.id) !== now) reload();
      seen.set(chat.id, now);
    },
  });
  return () => {
    clearTimeout(timer);
    stop();
  };
}

/** Create a folder, or change the one with this id. */
export async function saveFolder(id: string | null, name: string, color: FolderColor): Promise<ChatFolder> {
  const body = { name, color } satisfies FolderCreate & FolderChange;
  const saved = id === null ? post<ChatFolder>("/folders", body) : patch<ChatFolder>(`/folders/${id}`, body);
  return saved.finally(reloadFolders);
}

export const deleteFolder = (id: string) => del(`/folders/${id}`).finally(reloadFolders);

export const FOLDER_COLORS: Record<FolderColor, [name: string, className: string]> = {
  gray: ["Gray", "text-muted"],
  blue: ["Blue", "text-accent"],
  green: ["Green", "text-ok"],
  yellow: ["Yellow", "text-warn"],
  red: ["Red", "text-danger"],
  purple: ["Purple", "text-purple"],
};
