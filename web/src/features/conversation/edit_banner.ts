/** What editing a message that was sent does to what came after it. */
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
  const verb = later + queued === 1 ? "is" : "are";
  return `Saves over this point: ${removed.join(" and ")} ${verb} removed${isRunning ? ", the running turn stops" : ""}. Files in the workspace stay as they are.`;
}
