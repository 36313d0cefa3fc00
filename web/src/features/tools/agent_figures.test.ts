import { expect, test } from "vitest";
import type { AgentView } from "@/api/types.gen";
import { agentFigures } from "@/features/tools/agent_figures";

const FIGURES = { steps: 1, tokens: 0, cost_micros: 0, unpriced_request_count: 0, budget_micros: null };

test("steps, tokens and cost", () => {
  const agent = FIGURES as AgentView;
  expect(agentFigures(agent)).toBe("1 step");
  expect(agentFigures({ ...agent, steps: 3, tokens: 12_300, cost_micros: 420_000 })).toBe(
    "3 steps · 12.3K tokens · $0.42",
  );
  const open = { ...agent, cost_micros: 420_000, unpriced_request_count: 1, budget_micros: 1_000_000 };
  expect(agentFigures(open)).toBe("1 step · at least $0.42 · budget $1.00");
});
