import { ShieldAlert } from "lucide-react";
import { useState } from "react";
import { patchChat } from "@/api/chats";
import type { DebugMode, Recording } from "@/api/debug";
import { sentence } from "@/api/errors";
import type { ChatView } from "@/api/types.gen";
import { debugKeys } from "@/state/debug_records";
import { noteChat, queryClient } from "@/state/queries";
import { toast } from "@/ui/toast";

/** Change whether calls of a chat are recorded, and load its records again. */
export async function setMode(chat: string, mode: DebugMode): Promise<void> {
  noteChat(await patchChat(chat, { debug_mode: mode }));
  await queryClient.invalidateQueries({ queryKey: debugKeys.chat(chat) });
}

interface Props {
  chat: ChatView;
  recording: Recording;
}

/** The switch of a chat for recording, and the warning about its records. */
export function RecordingBar({ chat, recording }: Props) {
  return (
    <div className="flex flex-col gap-1.5 border-b border-line bg-bg2 px-3 py-2 text-small">
      <p className="flex items-start gap-2 text-muted">
        <ShieldAlert aria-hidden className="mt-px size-4 shrink-0 text-warn" />
        Records can contain sensitive text from prompts, files and answers.
      </p>
      <ModeChoice chat={chat} recording={recording} />
    </div>
  );
}

function ModeChoice({ chat, recording }: Props) {
  const [busy, setBusy] = useState(false);
  if (recording.is_forced) return <p className="pl-6">The operator of this server records all chats.</p>;
  // Subagents are recorded like the chat that started them.
  const isRoot = chat.parent_chat_id === null;
  if (!recording.is_allowed || chat.my_role !== "owner" || !isRoot) {
    return recording.is_on ? <p className="pl-6">Recording is on.</p> : null;
  }
  const choose = (mode: DebugMode) => {
    setBusy(true);
    setMode(chat.id, mode)
      .catch((error: unknown) => toast(sentence(error), { kind: "error" }))
      .finally(() => setBusy(false));
  };
  const setting = recording.mode === "inherit" ? ` (${recording.is_on ? "on" : "off"})` : "";
  return (
    <label className="flex items-center gap-2 pl-6">
      Record this chat
      <select
        value={recording.mode}
        disabled={busy}
        onChange={(event) => choose(event.target.value as DebugMode)}
        className="h-7 rounded-md border border-control bg-bg1 px-1.5 pointer-coarse:h-11 pointer-coarse:text-[16px]"
      >
        <option value="inherit">As in your settings{setting}</option>
        <option value="on">Always</option>
        <option value="off">Never</option>
      </select>
    </label>
  );
}
