/** The state of a subagent and the actions on it, for cards and for the panel. */
import { CircleCheck, CirclePause, Clock, Hand, TriangleAlert } from "lucide-react";
import { useState } from "react";
import { Link } from "react-router";
import { interrupt } from "@/api/chats";
import { sentence } from "@/api/errors";
import type { AgentView } from "@/api/types.gen";
import { type AgentState, type AgentTone, agentState, agentTime, isAtWork } from "@/chat/agents";
import { duration } from "@/chat/tools";
import { agentFigures } from "@/features/tools/agent_figures";
import { reloadAgents } from "@/state/agents";
import { useNow } from "@/state/hooks";
import { Button } from "@/ui/button";
import { cx } from "@/ui/cx";
import { Spinner } from "@/ui/spinner";
import { toast } from "@/ui/toast";

const COLORS: Record<AgentTone, string> = {
  busy: "text-muted",
  needs_you: "text-warn",
  ok: "text-ok",
  warn: "text-warn",
  danger: "text-danger",
  muted: "text-muted",
};

/** The state of a subagent as an icon and words. */
export function StateText({ state }: { state: AgentState }) {
  const { tone, text } = state;
  const icon = "size-3.5 shrink-0";
  return (
    <span className={cx("flex min-w-0 items-center gap-1 text-small", COLORS[tone])}>
      {tone === "busy" && <Spinner />}
      {tone === "needs_you" && <Hand aria-hidden className={icon} />}
      {tone === "ok" && <CircleCheck aria-hidden className={icon} />}
      {tone === "warn" && <Clock aria-hidden className={icon} />}
      {tone === "danger" && <TriangleAlert aria-hidden className={icon} />}
      {tone === "muted" && <CirclePause aria-hidden className={icon} />}
      <span className="min-w-0 break-words">{text}</span>
    </span>
  );
}

/** A link that looks like a small button, to the chat of a subagent. */
export function OpenAgent({ chatId, title }: { chatId: string; title: string }) {
  return (
    <Link
      to={`/c/${chatId}`}
      aria-label={`Open ${title}`}
      className="inline-flex h-7 shrink-0 items-center rounded-md border border-line bg-bg1 px-2 text-small font-medium hover:bg-bg3 pointer-coarse:min-h-11"
    >
      Open
    </Link>
  );
}

/** Stops a subagent. Only the owner of the chat may do so. */
export function StopAgent({ agent, chatId }: { agent: AgentView; chatId: string }) {
  const [stopping, setStopping] = useState(false);
  const stop = async () => {
    setStopping(true);
    try {
      await interrupt(agent.chat_id);
    } catch (error) {
      toast(sentence(error), { kind: "error" });
    } finally {
      setStopping(false);
      reloadAgents(chatId);
    }
  };
  return (
    <Button
      size="small"
      kind="danger"
      aria-label={`Stop ${agent.title}`}
      disabled={stopping || agent.status === "interrupting"}
      onClick={() => void stop()}
    >
      Stop
    </Button>
  );
}

/** State, time, figures and last activity of a subagent in a few lines. */
export function AgentFacts({ agent, model }: { agent: AgentView; model: string | null }) {
  const runs = isAtWork(agent);
  const now = useNow(1000, runs);
  const ms = agentTime(agent, now);
  const more = [
    ms === null ? "" : duration(runs ? Math.floor(ms / 1000) * 1000 : ms),
    agentFigures(agent),
    [model, agent.reasoning_effort].filter(Boolean).join(", "),
  ];
  return (
    <div className="space-y-1">
      <div className="flex flex-wrap items-center gap-x-3 gap-y-0.5">
        <StateText state={agentState(agent)} />
        <span className="text-small text-muted tabular-nums">{more.filter(Boolean).join(" · ")}</span>
      </div>
      {agent.activity && <p className="truncate text-small text-muted">{agent.activity}</p>}
    </div>
  );
}

/** The buttons of a subagent. */
export function AgentActions({ agent, chatId, mayStop }: { agent: AgentView; chatId: string; mayStop: boolean }) {
  return (
    <>
      {mayStop && isAtWork(agent) && <StopAgent agent={agent} chatId={chatId} />}
      <OpenAgent chatId={agent.chat_id} title={agent.title} />
    </>
  );
}
