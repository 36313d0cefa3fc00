import type { AgentView, ChatView } from "@/api/types.gen";
import { AgentActions, AgentFacts } from "@/features/tools/agent_line";
import { useKnownModels } from "@/state/queries";

/** All subagents of a chat with their state. */
export function AgentsTab({ chat, agents }: { chat: ChatView; agents: readonly AgentView[] }) {
  const models = useKnownModels();
  const mayStop = chat.my_role === "owner" && !chat.archived;
  return (
    <ul aria-label="Subagents" className="space-y-2">
      {agents.map((agent) => (
        <li key={agent.chat_id} className="rounded-lg border border-line p-3">
          <div className="mb-1 flex items-center gap-2">
            <span className="min-w-0 flex-1 truncate font-medium">{agent.title}</span>
            <span className="shrink-0 text-small text-muted">{agent.kind}</span>
            <AgentActions agent={agent} chatId={chat.id} mayStop={mayStop} />
          </div>
          <AgentFacts
            agent={agent}
            model={models.find((one) => one.id === agent.model_config_id)?.display_name ?? null}
          />
        </li>
      ))}
    </ul>
  );
}
