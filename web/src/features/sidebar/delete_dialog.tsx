import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { useNavigate, useParams } from "react-router";
import { sentence } from "@/api/errors";
import type { ChatView } from "@/api/types.gen";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { TextField } from "@/ui/field";
import { remove } from "./chat_actions";

/** The dialog to delete a chat permanently. The user has to type the title. */
export function DeleteDialog({ chat, onClose }: { chat: ChatView; onClose: () => void }) {
  const [typed, setTyped] = useState("");
  const { id } = useParams();
  const navigate = useNavigate();
  const erase = useMutation({
    mutationFn: () => remove(chat),
    onSuccess: () => {
      onClose();
      if (id === chat.id) void navigate("/");
    },
  });
  return (
    <Dialog
      open
      onOpenChange={onClose}
      title="Delete for good"
      description="The chat, its subagents and their records are removed and cannot be restored."
      footer={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button
            kind="danger"
            disabled={typed.trim() !== chat.title.trim() || erase.isPending}
            onClick={() => erase.mutate()}
          >
            Delete
          </Button>
        </>
      }
    >
      <TextField
        label={`Type “${chat.title}” to confirm`}
        autoComplete="off"
        value={typed}
        onChange={(event) => setTyped(event.target.value)}
        error={erase.error ? sentence(erase.error) : undefined}
      />
    </Dialog>
  );
}
