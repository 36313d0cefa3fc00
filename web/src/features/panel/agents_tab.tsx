import type { AgentView, ChatView } from "@/api/types.gen";
import { isAtWork } from "@/chat/subagent_texts";
import { AgentSummary, StopAgents } from "@/features/tools/agent_summary";
import { useKnownModels } from "@/state/queries";
import { dollars } from "@/ui/money";

interface Props {
  chat: ChatView;
  agents: readonly AgentView[];
  /** Called when the user wants to answer a question, which is beside the panel or below it. */
  onAnswer?: () => void;
}

/** All subagents of a chat with their state, in the order in which they were started. */
export function AgentsTab({ chat, agents, onAnswer }: Props) {
  const models = useKnownModels();
  const mayAct = chat.my_role === "owner" && !chat.archived;
  const inOrder = [...agents].sort((a, b) => a.created_at.localeCompare(b.created_at));
  const working = inOrder.filter(isAtWork);
  return (
    <>
      <div className="mb-3 flex min-h-7 items-center gap-2">
        <p className="min-w-0 flex-1 text-small text-muted">{summary(agents, working.length)}</p>
        {mayAct && working.length > 1 && (
          <StopAgents agents={working} chatId={chat.id} label="Stop all agents">
            Stop all
          </StopAgents>
        )}
      </div>
      <ul aria-label="Subagents" className="space-y-2">
        {inOrder.map((agent) => (
          <li key={agent.chat_id} className="rounded-lg border border-line p-3">
            <div className="mb-1 flex items-center gap-2">
              <span className="min-w-0 flex-1 truncate font-medium">{agent.title}</span>
              <span className="shrink-0 text-small text-muted">{agent.kind}</span>
            </div>
            <AgentSummary
              agent={agent}
              model={models.find((one) => one.id === agent.model_config_id)?.display_name ?? null}
              chatId={chat.id}
              mayAct={mayAct}
              {...(onAnswer ? { onAnswer } : {})}
            />
          </li>
        ))}
      </ul>
    </>
  );
}

/** "2 of 5 agents at work · $0.42". */
function summary(agents: readonly AgentView[], working: number): string {
  const count = `${agents.length} ${agents.length === 1 ? "agent" : "agents"}`;
  const cost = agents.reduce((sum, agent) => sum + agent.cost_micros, 0);
  return [working > 0 ? `${working} of ${count} at work` : count, cost > 0 ? dollars(cost) : ""]
    .filter(Boolean)
    .join(" · ");
}
