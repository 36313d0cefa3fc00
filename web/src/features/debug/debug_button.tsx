/** Links from the conversation to the debug records of a turn. They are shown if the turn is recorded. */
import { Bug } from "lucide-react";
import { useStore } from "zustand";
import { useConversation } from "@/features/conversation/chat_context";
import { useRunOfTurn } from "@/state/recorded_turns";
import { Button, IconButton } from "@/ui/button";
import { useGoToPlace } from "./debug_address";

/** The button in the footer of a turn, which is given by its first and last message. */
export function DebugButton({ first, last }: { first: number; last: number }) {
  const { chatId } = useConversation();
  const run = useRunOfTurn(chatId, first, last);
  return run === null ? null : <OpenRun run={run} />;
}

function OpenRun({ run }: { run: string }) {
  const go = useGoToPlace();
  return (
    <IconButton label="Debug" size="small" onClick={() => go({ run, step: null })}>
      <Bug />
    </IconButton>
  );
}

/** The button in the error of the last turn. */
export function LastTurnDebugButton() {
  const { chatId, session } = useConversation();
  const prompt = useStore(session.store, ({ data }) =>
    data.order.findLast((id) => data.messages.get(id)?.role === "user"),
  );
  const run = useRunOfTurn(chatId, prompt ?? Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY);
  return run === null ? null : <OpenRunOfError run={run} />;
}

function OpenRunOfError({ run }: { run: string }) {
  const go = useGoToPlace();
  return (
    <Button size="small" onClick={() => go({ run, step: null })}>
      <Bug aria-hidden className="size-3.5" />
      Debug
    </Button>
  );
}
