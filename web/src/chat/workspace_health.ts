/** Texts about the state of a workspace. A workspace with the status `running` may still not respond. */

export interface Health {
  status: string;
  agent_state?: string;
  error?: string | null;
}

/** Return the state in one word. */
export function stateOf({ status, agent_state }: Health): string {
  return status === "running" && agent_state === "unreachable" ? "unreachable" : status;
}

/** Return a sentence about why the workspace cannot be used; null if it can be used or is starting. */
export function reasonOf(health: Health): string | null {
  const state = stateOf(health);
  if (state === "unreachable") return health.error || "Its agent does not answer.";
  return state === "failed" ? (health.error ?? null) : null;
}
