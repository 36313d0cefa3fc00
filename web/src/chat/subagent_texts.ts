/** Texts about subagents: their state, their figures, and how they ended. */
import type { AgentView } from "@/api/types.gen";
import type { NoticePart } from "@/chat/types";
import { duration, type Fields, text } from "./tool_texts";

export type AgentTone = "busy" | "needs_you" | "ok" | "warn" | "danger" | "muted";

/** The state of a subagent in a few words, and its color. */
export interface AgentState {
  text: string;
  tone: AgentTone;
}

const ENDS: Record<string, AgentState> = {
  finished: { text: "finished", tone: "ok" },
  error: { text: "failed", tone: "danger" },
  interrupted: { text: "was stopped", tone: "muted" },
  deadline: { text: "reached its time limit", tone: "warn" },
};

const PHASES: Record<string, AgentState> = {
  model: { text: "Waiting for the model", tone: "busy" },
  tool: { text: "Running a tool", tone: "busy" },
  approval: { text: "Waiting for approval", tone: "needs_you" },
  queued: { text: "Waiting for a slot", tone: "busy" },
};

function pick(states: Record<string, AgentState>, name: string | null | undefined): AgentState | undefined {
  return name && Object.hasOwn(states, name) ? states[name] : undefined;
}

/** Return how a turn of a subagent ended, to follow its title. */
export function endOf(outcome: string | null | undefined): AgentState {
  return pick(ENDS, outcome) ?? { text: "ended", tone: "muted" };
}

/** "Agent “explore callers” finished". */
export function noticeTitle(notice: NoticePart): string {
  return `${notice.title ? `Agent “${notice.title}”` : "An agent"} ${endOf(notice.outcome).text}`;
}

type Status = Pick<AgentView, "status" | "phase" | "stalled" | "silent_seconds" | "outcome">;

/** Return whether a subagent is at work or waits for something. */
export function isAtWork({ status }: { status: string }): boolean {
  return status === "running" || status === "interrupting" || status === "requires_action";
}

/** Return the state of a subagent. A stalled one has shown no progress for a long time. */
export function agentState(agent: Status): AgentState {
  if (agent.status === "interrupting") return { text: "Stopping", tone: "busy" };
  if (isAtWork(agent)) {
    const phase = pick(PHASES, agent.phase) ?? pick(PHASES, agent.status === "requires_action" ? "approval" : null);
    if (agent.stalled && phase?.tone !== "needs_you") {
      const silent = agent.silent_seconds === null ? "" : ` for ${duration(agent.silent_seconds * 1000)}`;
      return { text: `No progress${silent}${phase ? ` (${phase.text.toLowerCase()})` : ""}`, tone: "warn" };
    }
    return phase ?? { text: "Working", tone: "busy" };
  }
  if (agent.status === "error" && agent.outcome !== "deadline") return ended("error");
  return agent.outcome ? ended(agent.outcome) : { text: "At rest", tone: "muted" };
}

const ALONE: Record<string, string> = { interrupted: "Stopped" };

/** Return how a turn ended, without a title before it. */
function ended(outcome: string): AgentState {
  const { text: words, tone } = endOf(outcome);
  return { text: ALONE[outcome] ?? words.charAt(0).toUpperCase() + words.slice(1), tone };
}

/** Return the state of a subagent as a tool's result tells it. A wait that timed out is no failure. */
export function toldState(told: Fields): AgentState {
  const kind = text(told.last_error_kind);
  const status = text(told.status);
  const outcome =
    kind === "deadline" ? "deadline" : told.interrupted === true ? "interrupted" : kind ? "error" : "finished";
  return agentState({
    status,
    phase: text(told.phase) || null,
    stalled: told.stalled === true,
    silent_seconds: typeof told.silent_seconds === "number" ? told.silent_seconds : null,
    // Only results of `wait_agent` tell how a subagent ended.
    outcome: kind || told.end_id !== undefined ? outcome : null,
  });
}

/** Return how long a subagent has been at work, or took, in milliseconds. */
export function agentTime(agent: AgentView, now: number): number | null {
  const from = Date.parse(isAtWork(agent) ? (agent.running_since ?? agent.created_at) : agent.created_at);
  const to = isAtWork(agent) ? now : Date.parse(agent.updated_at);
  return Number.isFinite(to - from) ? Math.max(0, to - from) : null;
}
