import { Hand } from "lucide-react";
import { useState } from "react";
import { submitToolResults } from "@/api/chats";
import { sentence } from "@/api/errors";
import { duration, words } from "@/chat/tool_texts";
import type { Action } from "@/chat/types";
import { useConversation } from "@/features/conversation/chat_context";
import { useNow } from "@/state/session_hooks";
import { Button } from "@/ui/button";
import { Json } from "./card_bodies";

/** The card for calls of client-executed tools. The owner can enter the results by hand. */
export function DynamicCard({ action, clockSkew }: { action: Action; clockSkew: number }) {
  const { chatId, isOwner } = useConversation();
  const now = useNow(1000) + clockSkew;
  const [answers, setAnswers] = useState<Record<string, string>>({});
  const [byHand, setByHand] = useState(false);
  const [problem, setProblem] = useState("");
  const left = action.deadline_at ? Date.parse(action.deadline_at) - now : null;
  const send = () => {
    const results = action.tool_calls.map((call) => {
      const typed = answers[call.tool_call_id] ?? "";
      try {
        return { tool_call_id: call.tool_call_id, output: JSON.parse(typed) as unknown };
      } catch {
        return { tool_call_id: call.tool_call_id, output: typed };
      }
    });
    setProblem("");
    submitToolResults(chatId, results).catch((error: unknown) => setProblem(sentence(error)));
  };
  return (
    <section aria-label="Waits for tool results" className="rounded-lg border border-warn bg-bg1 p-4">
      <p className="mb-2 flex items-center gap-2 font-medium">
        <Hand aria-hidden className="size-4 text-warn" />
        Waiting for the client
        {left !== null && (
          <span className="text-small text-muted tabular-nums">
            {left > 0 ? `${duration(Math.floor(left / 1000) * 1000)} left` : "time is up"}
          </span>
        )}
      </p>
      <div className="space-y-3">
        {action.tool_calls.map((call) => (
          <div key={call.tool_call_id} className="space-y-1">
            <p>{words(call.tool_name)}</p>
            <Json value={call.args} label="Input" />
            {byHand && (
              <textarea
                aria-label={`Result of ${words(call.tool_name)}`}
                placeholder='{"ok": true}'
                rows={3}
                className="w-full rounded-lg border border-control bg-bg1 p-2 font-mono text-code"
                value={answers[call.tool_call_id] ?? ""}
                onChange={(event) => setAnswers({ ...answers, [call.tool_call_id]: event.target.value })}
              />
            )}
          </div>
        ))}
      </div>
      {problem && <p className="mt-2 text-small text-danger">{problem}</p>}
      {isOwner && (
        <div className="mt-3 flex justify-end gap-2">
          {byHand ? (
            <Button kind="primary" onClick={send}>
              Send results
            </Button>
          ) : (
            <Button onClick={() => setByHand(true)}>Answer by hand</Button>
          )}
        </div>
      )}
    </section>
  );
}
