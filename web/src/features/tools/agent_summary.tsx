/** The figures of a subagent and the actions on it, for its card and for the panel. */
import { type ReactNode, useState } from "react";
import { sentence } from "@/api/errors";
import type { AgentView } from "@/api/types.gen";
import { agentState, agentTime, isAtWork } from "@/chat/subagent_texts";
import { duration } from "@/chat/tool_texts";
import { agentFigures } from "@/features/tools/agent_figures";
import { OpenAgent, StateText } from "@/features/tools/agent_line";
import { useNow } from "@/state/session_hooks";
import { askingAgent, stopAgents } from "@/state/subagents";
import { Button } from "@/ui/button";
import { toast } from "@/ui/toast";

interface StopProps {
  /** The subagents to stop. */
  agents: readonly AgentView[];
  chatId: string;
  /** The name of the button for screen readers. */
  label: string;
  children: ReactNode;
}

/** Stops subagents. Only the owner of the chat may do so. */
export function StopAgents({ agents, chatId, label, children }: StopProps) {
  const [stopping, setStopping] = useState(false);
  const stop = () => {
    setStopping(true);
    stopAgents(chatId, agents)
      .catch((error: unknown) => toast(sentence(error), { kind: "error" }))
      .finally(() => setStopping(false));
  };
  const isOver = agents.every((agent) => agent.status === "interrupting");
  return (
    <Button size="small" kind="danger" aria-label={label} disabled={stopping || isOver} onClick={stop}>
      {children}
    </Button>
  );
}

/** Moves to the question of a subagent, above the message box. */
function AnswerAgent({ agent, onAnswer }: { agent: AgentView; onAnswer: (() => void) | undefined }) {
  const answer = () => {
    askingAgent.setState({ id: agent.chat_id });
    onAnswer?.();
    requestAnimationFrame(() => document.querySelector<HTMLElement>("[data-agent-question]")?.focus());
  };
  return (
    <Button size="small" aria-label={`Answer ${agent.title}`} onClick={answer}>
      Answer
    </Button>
  );
}

interface SummaryProps {
  agent: AgentView;
  model: string | null;
  chatId: string;
  mayAct: boolean;
  /** Called when the user wants to answer the subagent's question. */
  onAnswer?: () => void;
}

/** State, time, figures, last activity and buttons of a subagent in a few lines. */
export function AgentSummary({ agent, model, chatId, mayAct, onAnswer }: SummaryProps) {
  const runs = isAtWork(agent);
  const now = useNow(1000, runs);
  const ms = agentTime(agent, now);
  const more = [
    ms === null ? "" : duration(runs ? Math.floor(ms / 1000) * 1000 : ms),
    agentFigures(agent),
    [model, agent.reasoning_effort].filter(Boolean).join(", "),
  ];
  return (
    <div className="flex flex-wrap items-end justify-end gap-2">
      <div className="min-w-0 flex-1 basis-60 space-y-0.5">
        <div className="flex flex-wrap items-center gap-x-3 gap-y-0.5">
          <StateText state={agentState(agent)} />
          <span className="text-small text-muted tabular-nums">{more.filter(Boolean).join(" · ")}</span>
        </div>
        {agent.activity && <p className="truncate text-small text-muted">{agent.activity}</p>}
      </div>
      <div className="flex shrink-0 gap-2">
        {mayAct && agent.status === "requires_action" && <AnswerAgent agent={agent} onAnswer={onAnswer} />}
        {mayAct && runs && (
          <StopAgents agents={[agent]} chatId={chatId} label={`Stop ${agent.title}`}>
            Stop
          </StopAgents>
        )}
        <OpenAgent chatId={agent.chat_id} title={agent.title} />
      </div>
    </div>
  );
}
