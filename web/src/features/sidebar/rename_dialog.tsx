import { useMutation } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { proposeTitle } from "@/api/chats";
import { sentence } from "@/api/errors";
import type { ChatView } from "@/api/types.gen";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { TextField } from "@/ui/field";
import { rename } from "./chat_actions";

/** The dialog to rename a chat, with a title suggested by a model. */
export function RenameDialog({ chat, onClose }: { chat: ChatView; onClose: () => void }) {
  const [title, setTitle] = useState(chat.title);
  const suggest = useMutation({
    mutationFn: () => proposeTitle(chat.id),
    onSuccess: (found) => found.title && setTitle(found.title),
  });
  const trimmed = title.trim();

  function onSubmit(event: FormEvent) {
    event.preventDefault();
    onClose();
    if (trimmed !== chat.title) void rename(chat, trimmed);
  }

  return (
    <Dialog
      open
      onOpenChange={onClose}
      title="Rename"
      footer={
        <>
          <Button className="mr-auto" disabled={suggest.isPending} onClick={() => suggest.mutate()}>
            {suggest.isPending ? "Thinking" : "Suggest"}
          </Button>
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" form="rename" kind="primary" disabled={!trimmed || trimmed.length > 200}>
            Save
          </Button>
        </>
      }
    >
      <form id="rename" onSubmit={onSubmit}>
        <TextField
          label="Title"
          value={title}
          maxLength={200}
          onChange={(event) => setTitle(event.target.value)}
          onFocus={(event) => event.target.select()}
          error={suggest.error ? sentence(suggest.error) : undefined}
        />
      </form>
    </Dialog>
  );
}
