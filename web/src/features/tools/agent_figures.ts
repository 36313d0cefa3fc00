import type { AgentView } from "@/api/types.gen";
import { compact, dollars } from "@/ui/money";

/** "3 steps · 12.3K tokens · $0.42". Calls without a price make the cost a lower bound. */
export function agentFigures(agent: AgentView): string {
  const parts = [`${agent.steps} ${agent.steps === 1 ? "step" : "steps"}`];
  if (agent.tokens > 0) parts.push(`${compact(agent.tokens)} tokens`);
  if (agent.cost_micros > 0) {
    parts.push(`${agent.unpriced_request_count > 0 ? "at least " : ""}${dollars(agent.cost_micros)}`);
  }
  if (agent.budget_micros !== null) parts.push(`budget ${dollars(agent.budget_micros)}`);
  return parts.join(" · ");
}
