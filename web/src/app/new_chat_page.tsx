import { useMutation } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { useNavigate } from "react-router";
import { createChat } from "@/api/chats";
import { sentence } from "@/api/errors";
import { useSelf } from "@/state/session";
import { Button } from "@/ui/button";
import { ListButton } from "@/ui/list_button";
import { Notice } from "@/ui/notice";

/** A greeting and a place to write. */
export function NewChatPage() {
  const me = useSelf();
  const navigate = useNavigate();
  const [text, setText] = useState("");
  const start = useMutation({
    mutationFn: () => createChat({ content: [{ type: "text", text }], client_type: "ui" }, crypto.randomUUID()),
    onSuccess: (chat) => navigate(`/c/${chat.id}`),
  });

  function onSubmit(event: FormEvent) {
    event.preventDefault();
    start.mutate();
  }

  return (
    <div className="flex min-h-0 flex-1 flex-col">
      <header className="flex h-12 shrink-0 items-center px-3">
        <ListButton />
      </header>
      <form onSubmit={onSubmit} className="m-auto flex w-full max-w-3xl flex-col gap-4 px-4">
        <h1 className="text-center text-[22px] font-semibold">What should be done, {me.name || me.username}?</h1>
        {start.error && <Notice kind="error">{sentence(start.error)}</Notice>}
        <textarea
          aria-label="Message"
          className="min-h-28 rounded-xl border border-control bg-bg1 p-3"
          value={text}
          onChange={(event) => setText(event.target.value)}
        />
        <Button type="submit" kind="primary" className="self-end" disabled={!text.trim() || start.isPending}>
          Send
        </Button>
      </form>
    </div>
  );
}
