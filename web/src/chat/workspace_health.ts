/** How a workspace is, in words: what the server calls running may not answer. */

export interface Health {
  status: string;
  agent_state?: string;
  error?: string | null;
}

/** Its state in one word. */
export function stateOf({ status, agent_state }: Health): string {
  return status === "running" && agent_state === "unreachable" ? "unreachable" : status;
}

/** Why it cannot be used, as a sentence; null while it can, or is about to. */
export function reasonOf(health: Health): string | null {
  const state = stateOf(health);
  if (state === "unreachable") return health.error || "Its agent does not answer.";
  return state === "failed" ? (health.error ?? null) : null;
}
