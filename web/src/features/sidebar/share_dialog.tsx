import { useMutation, useQuery } from "@tanstack/react-query";
import { X } from "lucide-react";
import { sentence } from "@/api/errors";
import { get, patch } from "@/api/http";
import type { ChatView, ItemsOfShareView, SharesBody } from "@/api/types.gen";
import { FindPeople } from "@/features/people/find_people";
import { reloadLists } from "@/state/chat_list";
import { useSelf } from "@/state/login_session";
import { keys, queryClient } from "@/state/queries";
import { Button, IconButton } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Notice } from "@/ui/notice";
import { Switch } from "@/ui/switch";
import { copyLink } from "./chat_actions";

/** The dialog to share a chat. */
export function ShareDialog({ chat, onClose }: { chat: ChatView; onClose: () => void }) {
  const me = useSelf();
  const key = ["acl", chat.id];
  const shares = useQuery({ queryKey: key, queryFn: () => get<ItemsOfShareView>(`/chats/${chat.id}/acl`) });
  const save = useMutation({
    mutationFn: (body: SharesBody) => patch<void>(`/chats/${chat.id}/acl`, body),
    onSettled: () => {
      // The chat and its row are marked as shared.
      void queryClient.invalidateQueries({ queryKey: keys.chat(chat.id) });
      reloadLists();
      return queryClient.invalidateQueries({ queryKey: key });
    },
  });
  const items = shares.data?.items ?? [];
  const people = items.flatMap((one) => (one.user === "everyone" ? [] : [one.user]));
  const error = shares.error ?? save.error;
  return (
    <Dialog
      open
      onOpenChange={onClose}
      title="Share"
      description="Readers see everything in this chat: its subagents and files as well. They cannot send messages."
      footer={
        <>
          <Button className="mr-auto" onClick={() => copyLink(chat)}>
            Copy link
          </Button>
          <Button kind="primary" onClick={onClose}>
            Done
          </Button>
        </>
      }
    >
      {error && (
        <Notice kind="error" className="mb-3">
          {sentence(error)}
        </Notice>
      )}
      <FindPeople
        known={[me.id, ...people.map((one) => one.id)]}
        onPick={(id) => save.mutate({ users: { [id]: "read" } } as SharesBody)}
      />
      <ul className="mt-3 flex flex-col">
        {people.map((person) => (
          <li key={person.id} className="flex items-center gap-2 py-1">
            <span className="min-w-0 flex-1 truncate">
              {person.name || person.username} <span className="text-muted">@{person.username}</span>
            </span>
            <IconButton
              label={`Remove ${person.username}`}
              size="small"
              onClick={() => save.mutate({ users: { [person.id]: null } } as SharesBody)}
            >
              <X />
            </IconButton>
          </li>
        ))}
      </ul>
      <div className="mt-3 border-t border-line pt-3">
        <Switch
          label="Everyone on this server"
          hint="Any user with the link can read it."
          checked={items.some((one) => one.user === "everyone")}
          onChange={(on) => save.mutate({ everyone: on ? "read" : null })}
        />
      </div>
    </Dialog>
  );
}
