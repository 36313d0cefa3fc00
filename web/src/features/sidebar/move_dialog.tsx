import { FolderPlus } from "lucide-react";
import { useState } from "react";
import { patchChat } from "@/api/chats";
import { sentence } from "@/api/errors";
import type { ChatFolder, ChatView } from "@/api/types.gen";
import { FolderDialog } from "@/features/sidebar/folder_dialog";
import { changeAtOnce } from "@/state/chat_list";
import { reloadFolders, useFolders } from "@/state/folders";
import { keys, queryClient } from "@/state/queries";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Choices } from "@/ui/radio_choices";
import { toast } from "@/ui/toast";

const NONE = "none";

/** Move a chat into a folder, or out of its folder. */
export async function moveChat(id: string, folder: ChatFolder | null): Promise<void> {
  const undo = changeAtOnce(id, { folder_id: folder?.id ?? null });
  try {
    const chat = await patchChat(id, { folder_id: folder?.id ?? null });
    queryClient.setQueryData(
      keys.chat(id),
      (old: ChatView | undefined) => old && { ...old, folder_id: chat.folder_id },
    );
    toast(folder ? `“${chat.title}” is in “${folder.name}”.` : `“${chat.title}” is no longer in a folder.`, {
      kind: "ok",
    });
  } catch (error) {
    undo();
    toast(sentence(error), { kind: "error" });
  }
  void reloadFolders();
}

/** The dialog to choose the folder of a chat, or to create one for it. */
export function MoveDialog({ chat, onClose }: { chat: ChatView; onClose: () => void }) {
  const folders = useFolders();
  const [chosen, setChosen] = useState(chat.folder_id ?? NONE);
  const [isNew, setNew] = useState(false);
  const move = (folder: ChatFolder | null) => {
    onClose();
    if ((folder?.id ?? null) !== chat.folder_id) void moveChat(chat.id, folder);
  };
  // Without a folder, there is only one to create.
  if (isNew || folders?.length === 0) return <FolderDialog folder={null} onClose={onClose} onSaved={move} />;
  return (
    <Dialog
      open
      onOpenChange={onClose}
      title="Move to folder"
      footer={
        <>
          <Button className="mr-auto" onClick={() => setNew(true)}>
            <FolderPlus className="size-4" /> New folder
          </Button>
          <Button onClick={onClose}>Cancel</Button>
          <Button
            kind="primary"
            disabled={!folders}
            onClick={() => move(folders?.find((one) => one.id === chosen) ?? null)}
          >
            Move
          </Button>
        </>
      }
    >
      {folders && (
        <Choices
          label="Folder"
          value={chosen}
          onChange={setChosen}
          options={[{ value: NONE, label: "No folder" }, ...folders.map((one) => ({ value: one.id, label: one.name }))]}
        />
      )}
    </Dialog>
  );
}
