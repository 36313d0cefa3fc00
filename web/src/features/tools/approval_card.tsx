import { ShieldQuestion } from "lucide-react";
import { type MouseEvent, type ReactNode, useState } from "react";
import { sentence } from "@/api/errors";
import { post } from "@/api/http";
import type { Action } from "@/api/types.gen";
import { fields, text, words } from "@/chat/tools";
import { useConversation } from "@/features/conversation/context";
import { Json, Output } from "@/features/tools/parts";
import { Button } from "@/ui/button";
import { toast } from "@/ui/toast";

/** Return whether the chat waits for an approval, not for results of a client. */
export function isApproval(action: Action): boolean {
  return action.kind === "approval";
}

interface Answer {
  decision: "approve" | "deny";
  always: Scope | null;
  reason: string;
}

type Scope = "chat" | "user";

/** Return what "always" would allow in this scope, one line for each call that has a pattern. */
export function permits(action: Action, scope: Scope): string[] {
  const lines = action.tool_calls.flatMap((call) => {
    const match = call.always?.[scope];
    if (!match) return [];
    const named = Object.entries(match).map(([path, glob]) => `${path} ${glob}`);
    return [`${call.always?.tool ?? words(call.tool_name)}: ${named.join(", ") || "anything"}`];
  });
  return [...new Set(lines)];
}

interface Props {
  action: Action;
  /** The chat that asks; that of the conversation if it is absent. */
  askedBy?: string;
  /** Says who asks, if it is not the conversation's own agent. */
  origin?: ReactNode;
  /** Called when an answer is sent, before the request. */
  onAnswer?: () => void;
  /** Called when the request has ended, even if it failed. */
  onAnswered?: () => void;
}

/** The card for calls that need the owner's approval. All are answered in one request. */
export function ApprovalCard({ action, askedBy, origin, onAnswer, onAnswered }: Props) {
  const { chatId, isOwner } = useConversation();
  const [denying, setDenying] = useState(false);
  const [choosing, setChoosing] = useState(false);
  const [reason, setReason] = useState("");
  const [busy, setBusy] = useState(false);
  const calls = action.tool_calls;
  const scopes = (["chat", "user"] as const).filter((scope) => permits(action, scope).length > 0);
  const send = ({ decision, always, reason: why }: Answer) => {
    setBusy(true);
    onAnswer?.();
    const answers = calls.map((call) => ({
      tool_call_id: call.tool_call_id,
      decision,
      ...(why ? { reason: why } : {}),
      ...(always && call.always?.[always] ? { always } : {}),
    }));
    post(`/chats/${askedBy ?? chatId}/approvals`, { answers })
      .catch((error: unknown) => toast(sentence(error), { kind: "error" }))
      .finally(() => {
        setBusy(false);
        onAnswered?.();
      });
  };
  // The second click of a double click would answer the next question, which has taken the place of this one.
  const once = (answer: Answer) => (event: MouseEvent) => {
    if (event.detail <= 1) send(answer);
  };
  return (
    <section aria-label="Approval" className="rounded-lg border border-warn bg-bg1 p-4" data-testid="approval">
      <p className="flex items-center gap-2 font-medium">
        <ShieldQuestion aria-hidden className="size-4 shrink-0 text-warn" />
        {calls.length === 1 ? "Allow this action?" : `Allow these ${calls.length} actions?`}
      </p>
      {origin && <p className="pl-6 text-small break-words text-muted">{origin}</p>}
      <div className="mt-2 space-y-3">
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
            // biome-ignore lint/a11y/noAutofocus: the user opened it to type
            autoFocus
            value={reason}
            onChange={(event) => setReason(event.target.value)}
            placeholder="Why not? The agent sees this reason."
            className="min-w-0 flex-1 rounded-lg border border-control bg-bg1 px-3"
          />
          <Button type="submit" kind="danger" disabled={busy}>
            Deny
          </Button>
        </form>
      )}
      {isOwner && !denying && choosing && (
        <ul aria-label="Always" className="mt-3 space-y-2">
          {scopes.map((scope) => (
            <li key={scope} className="flex items-start gap-3 rounded-lg border border-line px-3 py-2">
              <div className="min-w-0 flex-1">
                <p>{scope === "chat" ? "Do not ask again in this chat" : "Do not ask again in any of my chats"}</p>
                {permits(action, scope).map((line) => (
                  <p key={line} className="break-words font-mono text-small text-muted">
                    {line}
                  </p>
                ))}
              </div>
              <Button
                aria-label={scope === "chat" ? "Always in this chat" : "Always in my chats"}
                onClick={once({ decision: "approve", always: scope, reason: "" })}
                disabled={busy}
              >
                Approve
              </Button>
            </li>
          ))}
        </ul>
      )}
      {isOwner && !denying && (
        <div className="mt-3 flex flex-wrap justify-end gap-2">
          <Button onClick={() => setDenying(true)} disabled={busy}>
            Deny
          </Button>
          {scopes.length > 0 && (
            <Button aria-expanded={choosing} onClick={() => setChoosing(!choosing)} disabled={busy}>
              Always
            </Button>
          )}
          <Button kind="primary" onClick={once({ decision: "approve", always: null, reason: "" })} disabled={busy}>
            Approve
          </Button>
        </div>
      )}
    </section>
  );
}
