import { ShieldQuestion } from "lucide-react";
import { useState } from "react";
import { sentence } from "@/api/errors";
import { post } from "@/api/http";
import { fields, text, words } from "@/chat/tools";
import type { Action } from "@/chat/types";
import { useConversation } from "@/features/conversation/context";
import { Json, Output } from "@/features/tools/parts";
import { Button } from "@/ui/button";
import { toast } from "@/ui/toast";

/** The chat waits for a person's word, not for a client's results. */
export function isApproval(action: Action): boolean {
  return action.kind === "approval";
}

interface Answer {
  decision: "approve" | "deny";
  always: "chat" | "user" | null;
  reason: string;
}

/** Calls that need a word of the owner before they run. All are answered at once. */
export function ApprovalCard({ action }: { action: Action }) {
  const { chatId, isOwner } = useConversation();
  const [denying, setDenying] = useState(false);
  const [reason, setReason] = useState("");
  const [busy, setBusy] = useState(false);
  const calls = action.tool_calls;
  const canAlways = calls.some((call) => call.always !== undefined);
  const send = ({ decision, always, reason: why }: Answer) => {
    setBusy(true);
    const answers = calls.map((call) => ({
      tool_call_id: call.tool_call_id,
      decision,
      ...(why ? { reason: why } : {}),
      ...(always && call.always ? { always } : {}),
    }));
    post(`/chats/${chatId}/approvals`, { answers })
      .catch((error: unknown) => toast(sentence(error), { kind: "error" }))
      .finally(() => setBusy(false));
  };
  return (
    <section aria-label="Approval" className="rounded-lg border border-warn bg-bg1 p-4" data-testid="approval">
      <p className="mb-2 flex items-center gap-2 font-medium">
        <ShieldQuestion aria-hidden className="size-4 text-warn" />
        {calls.length === 1 ? "May this run?" : `May these ${calls.length} calls run?`}
      </p>
      <div className="space-y-3">
        {calls.map((call) => (
          <div key={call.tool_call_id} className="space-y-1">
            <p>{words(call.tool_name)}</p>
            {text(fields(call.args).command) ? (
              <Output label="Command" text={`$ ${text(fields(call.args).command)}`} />
            ) : (
              <Json value={call.args} label="Input" />
            )}
          </div>
        ))}
      </div>
      {isOwner && denying && (
        <form
          className="mt-3 flex gap-2"
          onSubmit={(event) => {
            event.preventDefault();
            send({ decision: "deny", always: null, reason: reason.trim() });
          }}
        >
          <input
            aria-label="Why not"
            // biome-ignore lint/a11y/noAutofocus: opened to be typed into
            autoFocus
            value={reason}
            onChange={(event) => setReason(event.target.value)}
            placeholder="Why not? The agent is told."
            className="min-w-0 flex-1 rounded-lg border border-control bg-bg1 px-3"
          />
          <Button type="submit" kind="danger" disabled={busy}>
            Deny
          </Button>
        </form>
      )}
      {isOwner && !denying && (
        <div className="mt-3 flex flex-wrap justify-end gap-2">
          <Button onClick={() => setDenying(true)} disabled={busy}>
            Deny
          </Button>
          {canAlways && (
            <Button onClick={() => send({ decision: "approve", always: "chat", reason: "" })} disabled={busy}>
              Always in this chat
            </Button>
          )}
          <Button
            kind="primary"
            onClick={() => send({ decision: "approve", always: null, reason: "" })}
            disabled={busy}
          >
            Approve
          </Button>
        </div>
      )}
    </section>
  );
}
