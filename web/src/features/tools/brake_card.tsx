/** The card for calls that are on hold because the agent repeats itself. */
import { Repeat } from "lucide-react";
import { type ReactNode, useState } from "react";
import { interrupt } from "@/api/chats";
import { sentence } from "@/api/errors";
import { post } from "@/api/http";
import type { Action } from "@/api/types.gen";
import { useConversation } from "@/features/conversation/chat_context";
import { Asked } from "@/features/tools/asked_call";
import { Button } from "@/ui/button";
import { toast } from "@/ui/toast";

interface Props {
  action: Action;
  askedBy: string | undefined;
  origin: ReactNode;
  onAnswer: (() => void) | undefined;
  onAnswered: (() => void) | undefined;
}

/** Return whether all calls of the question are on hold because they repeat. */
export function isOnHold(action: Action): boolean {
  return action.tool_calls.length > 0 && action.tool_calls.every((call) => call.brake);
}

/** All calls get the same answer: continue, stop the turn, or an instruction for the agent. */
export function BrakeCard({ action, askedBy, origin, onAnswer, onAnswered }: Props) {
  const { chatId, isOwner } = useConversation();
  const [steering, setSteering] = useState(false);
  const [instruction, setInstruction] = useState("");
  const [busy, setBusy] = useState(false);
  const asking = askedBy ?? chatId;
  const sentences = [...new Set(action.tool_calls.map((call) => call.brake ?? ""))];
  const run = (request: () => Promise<unknown>) => {
    setBusy(true);
    onAnswer?.();
    request()
      .catch((error: unknown) => toast(sentence(error), { kind: "error" }))
      .finally(() => {
        setBusy(false);
        onAnswered?.();
      });
  };
  const answer = (given: { decision: "approve" } | { decision: "deny"; reason: string }) =>
    run(() =>
      post(`/chats/${asking}/approvals`, {
        answers: action.tool_calls.map((call) => ({ tool_call_id: call.tool_call_id, ...given })),
      }),
    );
  return (
    <section aria-label="Approval" className="rounded-lg border border-warn bg-bg1 p-4" data-testid="brake">
      <p className="flex flex-wrap items-center gap-x-2 font-medium">
        <Repeat aria-hidden className="size-4 shrink-0 text-warn" />
        The agent repeats itself
        <span className="text-small font-normal text-muted">Waiting for you</span>
      </p>
      {origin && <p className="pl-6 text-small break-words text-muted">{origin}</p>}
      {sentences.map((one) => (
        <p key={one} className="mt-2 break-words">
          {one}
        </p>
      ))}
      <ul className="mt-3 space-y-3 text-small">
        {action.tool_calls.map((call) => (
          <li key={call.tool_call_id} className="space-y-1">
            <Asked call={call} />
          </li>
        ))}
      </ul>
      {isOwner && steering && (
        <form
          className="mt-3 flex gap-2"
          onSubmit={(event) => {
            event.preventDefault();
            answer({ decision: "deny", reason: instruction.trim() });
          }}
        >
          <input
            aria-label="Instruction for the agent"
            // biome-ignore lint/a11y/noAutofocus: the user opened it to type
            autoFocus
            value={instruction}
            onChange={(event) => setInstruction(event.target.value)}
            placeholder="What should the agent do instead?"
            maxLength={1000}
            className="min-h-9 min-w-0 flex-1 rounded-lg border border-control bg-bg1 px-3"
          />
          <Button onClick={() => setSteering(false)} disabled={busy}>
            Back
          </Button>
          <Button type="submit" kind="primary" disabled={busy || !instruction.trim()}>
            Send
          </Button>
        </form>
      )}
      {isOwner && !steering && (
        <div className="mt-3 flex flex-wrap items-center justify-end gap-2">
          <Button kind="danger" onClick={() => run(() => interrupt(asking))} disabled={busy}>
            Stop
          </Button>
          <Button onClick={() => setSteering(true)} disabled={busy}>
            Steer
          </Button>
          <Button
            kind="primary"
            disabled={busy}
            // The second click of a double click would answer the next question.
            onClick={(event) => event.detail <= 1 && answer({ decision: "approve" })}
          >
            Continue
          </Button>
        </div>
      )}
    </section>
  );
}
