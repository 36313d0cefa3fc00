import { type FormEvent, useState } from "react";
import { giveReason, MAX_REASON, MIN_REASON } from "@/api/access_reasons";
import { forgetSession } from "@/state/chat_sessions";
import { keys, queryClient } from "@/state/queries";
import { Button } from "@/ui/button";
import { TextField } from "@/ui/field";

/** Ask an administrator for the reason to read another user's chat. The owner sees it. */
export function ReasonPage({ chatId }: { chatId: string }) {
  const [reason, setReason] = useState("");
  const short = reason.trim().length < MIN_REASON;

  function onSubmit(event: FormEvent) {
    event.preventDefault();
    if (short) return;
    giveReason(chatId, reason);
    // Repeat the requests that were refused without a reason.
    forgetSession(chatId);
    void queryClient.resetQueries({ queryKey: keys.chat(chatId) });
  }

  return (
    <div className="grid h-full flex-1 place-items-center overflow-y-auto p-6">
      <form onSubmit={onSubmit} className="w-full max-w-md">
        <h1 className="text-[20px] font-semibold">This chat belongs to another user</h1>
        <p className="mt-2 mb-4 text-muted">
          As an administrator you can read it if you give a reason. The owner sees who read it, when, and this reason.
        </p>
        <TextField
          label="Reason"
          value={reason}
          maxLength={MAX_REASON}
          hint={`${MIN_REASON} to ${MAX_REASON} characters.`}
          onChange={(event) => setReason(event.target.value)}
        />
        <Button type="submit" kind="primary" className="mt-4" disabled={short}>
          Read the chat
        </Button>
      </form>
    </div>
  );
}
