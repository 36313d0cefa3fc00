/** The text above the message box during an edit: the messages that the edit replaces. */
export interface EditReach {
  /** Messages after the edited one. */
  later: number;
  queued: number;
  isRunning: boolean;
}

export function editBanner({ later, queued, isRunning }: EditReach): string {
  const removed = [
    `${later} later ${later === 1 ? "message" : "messages"}`,
    queued > 0 ? `${queued} queued ${queued === 1 ? "one" : "ones"}` : "",
  ].filter(Boolean);
  const stops = isRunning ? ", and stops the running turn" : "";
  return `Sending this edit removes ${removed.join(" and ")}${stops}. Files in the workspace stay as they are.`;
}
