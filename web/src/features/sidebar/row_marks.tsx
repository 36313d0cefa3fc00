import { Folder, Users } from "lucide-react";
import type { ChatView } from "@/api/types.gen";
import { FOLDER_COLORS, useFolders } from "@/state/folders";

/** The marks of a chat in the list: its folder, and that others can read it. */
export function RowMarks({ chat }: { chat: ChatView }) {
  const folder = useFolders()?.find((one) => one.id === chat.folder_id);
  return (
    <span className="flex shrink-0 items-center gap-1 self-center [&_svg]:size-3.5">
      {chat.shared && chat.my_role === "owner" && (
        <span role="img" aria-label="Shared" title="You share this chat" className="text-muted">
          <Users aria-hidden />
        </span>
      )}
      {folder && (
        <span
          role="img"
          aria-label={`In folder ${folder.name}`}
          title={`In folder ${folder.name}`}
          className={FOLDER_COLORS[folder.color]?.[1]}
        >
          <Folder aria-hidden />
        </span>
      )}
    </span>
  );
}
