/** Texts about the state of a workspace. A workspace with the status `running` may still not respond. */

export interface Health {
  status: string;
  error_code?: string | null;
  agent_state?: string;
  error?: string | null;
  startup_exit_code?: number | null;
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

/** Return a sentence about the startup script of a running workspace that failed; null if it did not. */
export function startupProblem({ status, agent_state, startup_exit_code }: Health): string | null {
  if (status !== "running") return null;
  if (agent_state === "script_timeout") return "Its startup script took too long and was ended.";
  if (agent_state !== "script_failed") return null;
  const code = typeof startup_exit_code === "number" ? ` with exit code ${startup_exit_code}` : "";
  return `Its startup script failed${code}.`;
}

/** Return whether the workspace starts, or runs while its startup script is not over. */
export function isStartingUp({ status, agent_state }: Health): boolean {
  if (status === "pending" || status === "starting") return true;
  return status === "running" && (agent_state === "connecting" || agent_state === "starting");
}

/** Return whether the last startup script failed, also of a workspace that is stopped by now. */
export function hasFailedStart(health: Health): boolean {
  return health.status === "failed" || startupProblem(health) !== null || Boolean(health.startup_exit_code);
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
