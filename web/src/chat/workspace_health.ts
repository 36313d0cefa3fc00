/** Texts about the state of a workspace. A workspace with the status `running` may still not respond. */

export interface Health {
  status: string;
  error_code?: string | null;
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

// These codes are set after a start, when a workspace that ran ends by itself.
const ENDED = ["agent_exited", "node_restarted", "agent_misbehaved"];

/** Return a sentence about a named workspace: its state, and the reason if it cannot be used. */
export function describe(health: Health & { name: string }): string {
  const { name } = health;
  const reason = reasonOf(health);
  switch (stateOf(health)) {
    case "failed": {
      const what = ENDED.includes(health.error_code ?? "") ? "stopped working" : "failed to start";
      return reason ? `${name} ${what}: ${reason}` : `${name} ${what}.`;
    }
    case "unreachable":
      return `${name} cannot be reached: ${reason}`;
    case "pending":
      return `${name} is waiting to start.`;
    default:
      return `${name} is ${health.status}.`;
  }
}
