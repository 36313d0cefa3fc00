import { useEffect, useRef } from "react";
import { Link } from "react-router";
import { useStore } from "zustand";
import type { AgentView, ChatView } from "@/api/types.gen";
import { askingServer } from "@/chat/announcements";
import { ApprovalCard } from "@/features/tools/approval_card";
import { askingAgent, reloadAgents, useAgentAction, useAgents } from "@/state/subagents";
import { announce } from "@/ui/announcer";

/** The questions of a root chat's subagents, above the message box, one at a time. They are answered here. */
export function AgentQuestions({ chat }: { chat: ChatView }) {
  const isRoot = chat.parent_chat_id === null;
  const { data } = useAgents(chat.id, isRoot);
  const wanted = useStore(askingAgent, (state) => state.id);
  // In the order of the spawns, so that a question does not move while others arrive.
  const asking = (data?.agents ?? [])
    .filter((agent) => agent.status === "requires_action")
    .sort((a, b) => a.created_at.localeCompare(b.created_at));
  const agent = asking.find((one) => one.chat_id === wanted) ?? asking[0];
  const place = useRef<HTMLDivElement>(null);
  if (!isRoot || !agent) return null;
  return (
    // It takes the focus when an answer is sent: pressing the key twice must not answer the next question.
    <div ref={place} tabIndex={-1} data-agent-question className="mb-2 outline-none">
      <AgentQuestion
        key={`${agent.chat_id} ${agent.updated_at}`}
        agent={agent}
        rootId={chat.id}
        others={asking.length - 1}
        onAnswer={() => place.current?.focus()}
      />
    </div>
  );
}

interface Props {
  agent: AgentView;
  rootId: string;
  others: number;
  onAnswer: () => void;
}

function AgentQuestion({ agent, rootId, others, onAnswer }: Props) {
  const { data: action } = useAgentAction(agent);
  const isAsked = action?.kind === "approval";
  const server = action && askingServer(action);
  useEffect(() => {
    if (!isAsked) return;
    announce(
      server
        ? `Needs you: ${server} asks a question for the agent ${agent.title}`
        : `Needs you: the agent ${agent.title} asks for permission`,
    );
  }, [isAsked, server, agent.title]);
  if (!isAsked) return null;
  return (
    <div className="max-h-[50dvh] overflow-y-auto">
      <ApprovalCard
        action={action}
        askedBy={agent.chat_id}
        origin={
          <>
            Asked by the agent{" "}
            <Link className="font-medium text-text underline" to={`/c/${agent.chat_id}`}>
              {agent.title}
            </Link>
            {others > 0 && `. ${others} more ${others === 1 ? "agent waits" : "agents wait"} for your answer.`}
          </>
        }
        onAnswer={onAnswer}
        onAnswered={() => reloadAgents(rootId)}
      />
    </div>
  );
}
