/** The cost of a chat in its header. It is loaded again after each step, so that a running chat shows what it spends. */
import { useEffect, useRef } from "react";
import { useStore } from "zustand";
import { keys, queryClient, useCost } from "@/state/queries";
import { useSession } from "@/state/session_hooks";
import { useAgents } from "@/state/subagents";
import { dollars } from "@/ui/money";

// Quick steps share one request.
const PAUSE_MS = 1_000;

interface Props {
  chatId: string;
  /** Show what the cost consists of. */
  onDetails: () => void;
}

export function ChatCost({ chatId, onDetails }: Props) {
  const { data: cost } = useCost(chatId, true);
  useLiveCost(chatId);
  if (!cost || cost.total_cost_micros === 0) return null;
  const amount = dollars(cost.total_cost_micros);
  return (
    <button
      type="button"
      onClick={onDetails}
      aria-label={`Cost of this chat: ${amount}`}
      title="Cost of this chat and its agents"
      data-testid="chat-cost"
      className="flex h-8 shrink-0 items-center rounded-md px-2 text-small text-muted tabular-nums hover:bg-bg3"
    >
      {amount}
    </button>
  );
}

/** Load the cost of the chat and the user's spending again when a step ends, here or in a subagent. */
function useLiveCost(chatId: string): void {
  const session = useSession(chatId);
  const step = useStore(session.store, ({ data }) => `${data.order.at(-1) ?? ""} ${data.status}`);
  // Read from the cache: `useFollowAgents` keeps it current.
  const { data: family } = useAgents(chatId, false);
  const ofAgents = family?.agents.reduce((sum, agent) => sum + agent.cost_micros, 0) ?? 0;
  const last = useRef({ what: `${step} ${ofAgents}`, at: 0 });
  useEffect(() => {
    const what = `${step} ${ofAgents}`;
    if (last.current.what === what) return;
    last.current.what = what;
    const timer = setTimeout(
      () => {
        last.current.at = Date.now();
        void queryClient.invalidateQueries({ queryKey: keys.cost(chatId) });
        void queryClient.invalidateQueries({ queryKey: keys.spend });
      },
      Math.max(0, last.current.at + PAUSE_MS - Date.now()),
    );
    return () => {
      clearTimeout(timer);
      last.current.what = "";
    };
  }, [chatId, step, ofAgents]);
}
