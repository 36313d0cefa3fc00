import { Check, Hand, X } from "lucide-react";
import { type MouseEvent, type ReactNode, Suspense, useState } from "react";
import { sentence } from "@/api/errors";
import { post } from "@/api/http";
import type { Action } from "@/api/types.gen";
import { useConversation } from "@/features/conversation/chat_context";
import { Asked, type AskedCall } from "@/features/tools/asked_call";
import { BrakeCard, isOnHold } from "@/features/tools/brake_card";
import { useChat } from "@/state/queries";
import { Button } from "@/ui/button";
import { cx } from "@/ui/cx";
import { lazyPart } from "@/ui/lazy_part";
import { toast } from "@/ui/toast";
import { type AlwaysOffer, alwaysOffers, matchingCommands } from "./always_rules";

const ServerQuestions = lazyPart(async () => (await import("@/features/tools/server_questions")).ServerQuestions);

/** Return whether the chat waits for an approval, not for results of a client. */
export function isApproval(action: Action): boolean {
  return action.kind === "approval";
}

interface Answer {
  decision: "approve" | "deny";
  reason?: string;
  offer?: AlwaysOffer;
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

/** The card for calls that need the owner's approval, are on hold because they repeat, or wait for answers of the user. */
export function ApprovalCard(props: Props) {
  const { action, askedBy, origin, onAnswer, onAnswered } = props;
  const asked = { action, askedBy, origin, onAnswer, onAnswered };
  if (action.tool_calls.some((call) => call.elicitation))
    return (
      <Suspense>
        <ServerQuestions {...asked} />
      </Suspense>
    );
  if (isOnHold(action)) return <BrakeCard {...asked} />;
  return <Questions {...props} />;
}

/** Each call has its own decision; all are sent in one request. */
function Questions({ action, askedBy, origin, onAnswer, onAnswered }: Props) {
  const { chatId, isOwner } = useConversation();
  const [chosen, setChosen] = useState<Record<string, Answer>>({});
  const [denying, setDenying] = useState(false);
  const [choosing, setChoosing] = useState(false);
  const [reason, setReason] = useState("");
  const [busy, setBusy] = useState(false);
  // In this mode rules that permit have no effect.
  const hasAlways = useChat(chatId).data?.permission_mode !== "ask";
  const calls = action.tool_calls;
  const only = calls.length === 1 ? calls[0] : undefined;
  const decided = calls.filter((call) => chosen[call.tool_call_id]).length;
  const choose = (call: AskedCall, answer: Answer) => setChosen((known) => ({ ...known, [call.tool_call_id]: answer }));
  const send = (answerOf: (call: AskedCall) => Answer | undefined) => {
    setBusy(true);
    onAnswer?.();
    const answers = calls.map((call) => {
      const { decision = "deny", reason: why, offer } = answerOf(call) ?? {};
      return {
        tool_call_id: call.tool_call_id,
        decision,
        ...(why?.trim() ? { reason: why.trim() } : {}),
        ...(offer ? { always: offer.scope, match: offer.match } : {}),
      };
    });
    post(`/chats/${askedBy ?? chatId}/approvals`, { answers })
      .catch((error: unknown) => toast(sentence(error), { kind: "error" }))
      .finally(() => {
        setBusy(false);
        onAnswered?.();
      });
  };
  // The second click of a double click would answer the next question, which has taken the place of this one.
  const once = (act: () => void) => (event: MouseEvent) => {
    if (event.detail <= 1) act();
  };
  return (
    <section aria-label="Approval" className="rounded-lg border border-warn bg-bg1 p-4" data-testid="approval">
      <p className="flex flex-wrap items-center gap-x-2 font-medium">
        <Hand aria-hidden className="size-4 shrink-0 text-warn" />
        {only ? "Allow this action?" : `Allow these ${calls.length} actions?`}
        <span className="text-small font-normal text-muted">Waiting for you</span>
      </p>
      {origin && <p className="pl-6 text-small break-words text-muted">{origin}</p>}
      <ul className="mt-2 space-y-3">
        {calls.map((call) => (
          <li
            key={call.tool_call_id}
            data-testid="asked-call"
            className={cx("space-y-1", !only && "rounded-lg border border-line p-3")}
          >
            <Asked call={call} />
            {call.brake && <p className="text-small break-words text-muted">{call.brake}</p>}
            {isOwner && !only && (
              <CallDecision
                hasAlways={hasAlways}
                call={call}
                answer={chosen[call.tool_call_id]}
                onChoose={(answer) => choose(call, answer)}
                busy={busy}
              />
            )}
          </li>
        ))}
      </ul>
      {isOwner && denying && (
        <form
          className="mt-3 flex gap-2"
          onSubmit={(event) => {
            event.preventDefault();
            send(() => ({ decision: "deny", reason }));
          }}
        >
          <Why value={reason} onChange={setReason} />
          <Button onClick={() => setDenying(false)} disabled={busy}>
            Cancel
          </Button>
          <Button type="submit" kind="danger" disabled={busy}>
            {only ? "Deny" : "Deny all"}
          </Button>
        </form>
      )}
      {isOwner && only && !denying && choosing && (
        <Offers call={only} busy={busy} onPick={(offer) => send(() => ({ decision: "approve", offer }))} />
      )}
      {isOwner && !hasAlways && (
        <p className="mt-2 text-small text-muted">
          The chat is in the mode Ask, so each action is asked for every time.
        </p>
      )}
      {isOwner && !denying && (
        <div className="mt-3 flex flex-wrap items-center justify-end gap-2">
          {decided > 0 ? (
            <>
              <span className="mr-auto text-small text-muted">
                {decided} of {calls.length} decided
              </span>
              <Button onClick={() => setChosen({})} disabled={busy}>
                Start over
              </Button>
              <Button
                kind="primary"
                disabled={busy || decided < calls.length}
                onClick={once(() => send((call) => chosen[call.tool_call_id]))}
              >
                Send decisions
              </Button>
            </>
          ) : (
            <>
              <Button onClick={() => setDenying(true)} disabled={busy}>
                {only ? "Deny" : "Deny all"}
              </Button>
              {only && hasAlways && alwaysOffers(only).length > 0 && (
                <Button aria-expanded={choosing} onClick={() => setChoosing(!choosing)} disabled={busy}>
                  Always
                </Button>
              )}
              <Button kind="primary" onClick={once(() => send(() => ({ decision: "approve" })))} disabled={busy}>
                {only ? "Approve" : "Approve all"}
              </Button>
            </>
          )}
        </div>
      )}
    </section>
  );
}

interface DecisionProps {
  call: AskedCall;
  answer: Answer | undefined;
  hasAlways: boolean;
  onChoose: (answer: Answer) => void;
  busy: boolean;
}

/** The decision on one of several calls. */
function CallDecision({ call, answer, hasAlways, onChoose, busy }: DecisionProps) {
  const [choosing, setChoosing] = useState(false);
  const is = (decision: Answer["decision"]) => answer?.decision === decision;
  return (
    <div className="pt-1">
      <div className="flex flex-wrap items-center gap-2">
        <Button
          size="small"
          aria-pressed={is("approve")}
          className={cx(is("approve") && "bg-bg3 text-ok!")}
          disabled={busy}
          onClick={() => onChoose({ decision: "approve" })}
        >
          <Check aria-hidden className="size-3.5" /> Approve
        </Button>
        <Button
          size="small"
          aria-pressed={is("deny")}
          className={cx(is("deny") && "bg-bg3 text-danger!")}
          disabled={busy}
          onClick={() => onChoose({ decision: "deny", reason: "" })}
        >
          <X aria-hidden className="size-3.5" /> Deny
        </Button>
        {hasAlways && alwaysOffers(call).length > 0 && (
          <Button size="small" aria-expanded={choosing} disabled={busy} onClick={() => setChoosing(!choosing)}>
            Always
          </Button>
        )}
        {answer?.offer && <span className="text-small break-words text-muted">Always: {answer.offer.label}</span>}
      </div>
      {is("deny") && (
        <div className="mt-2 flex">
          <Why value={answer?.reason ?? ""} onChange={(reason) => onChoose({ decision: "deny", reason })} />
        </div>
      )}
      {choosing && (
        <Offers
          call={call}
          busy={busy}
          onPick={(offer) => {
            onChoose({ decision: "approve", offer });
            setChoosing(false);
          }}
        />
      )}
    </div>
  );
}

function Why({ value, onChange }: { value: string; onChange: (value: string) => void }) {
  return (
    <input
      aria-label="Why not"
      // biome-ignore lint/a11y/noAutofocus: the user opened it to type
      autoFocus
      value={value}
      onChange={(event) => onChange(event.target.value)}
      placeholder="Why not? The agent sees this reason."
      maxLength={1000}
      className="min-h-9 min-w-0 flex-1 rounded-lg border border-control bg-bg1 px-3"
    />
  );
}

interface OffersProps {
  call: AskedCall;
  busy: boolean;
  onPick: (offer: AlwaysOffer) => void;
}

/** The rules that "always" can create, each with a preview of the calls that it would allow. */
function Offers({ call, busy, onPick }: OffersProps) {
  const { session } = useConversation();
  const { messages } = session.store.getState().data;
  return (
    <ul aria-label="Always" className="mt-3 space-y-2">
      {alwaysOffers(call).map((offer) => {
        const earlier = matchingCommands(offer, call, messages.values());
        return (
          <li key={offer.label} className="flex items-start gap-3 rounded-lg border border-line px-3 py-2">
            <div className="min-w-0 flex-1">
              <p className="break-words">{offer.label}</p>
              {offer.pattern && <p className="font-mono text-small break-words">{offer.pattern}</p>}
              <p className="text-small break-words text-muted">{offer.effect}</p>
              {earlier.length > 0 && (
                <p className="text-small break-words text-muted">
                  Earlier in this chat it would have allowed{" "}
                  {earlier.map((command, at) => (
                    <span key={command}>
                      {at > 0 && ", "}
                      <code className="font-mono">{command}</code>
                    </span>
                  ))}
                  .
                </p>
              )}
            </div>
            <Button aria-label={`Always: ${offer.label}`} disabled={busy} onClick={() => onPick(offer)}>
              Approve
            </Button>
          </li>
        );
      })}
    </ul>
  );
}
