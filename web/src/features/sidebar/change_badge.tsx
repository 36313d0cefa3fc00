import type { ChatView } from "@/api/types.gen";

/** Return whether lines were added or removed. An empty new file alone would be shown as `+0 -0`. */
export const hasChanges = ({ git }: ChatView) => git != null && git.additions + git.deletions > 0;

/** The last known change counts of the chat's repository. */
export function ChangeBadge({ chat }: { chat: ChatView }) {
  const { git } = chat;
  if (!git || !hasChanges(chat)) return null;
  const files = `${git.changed_files} ${git.changed_files === 1 ? "file" : "files"} changed`;
  return (
    <span
      role="img"
      aria-label={`${files}, ${git.additions} lines added, ${git.deletions} removed`}
      title={`${files} in ${git.root.split("/").at(-1)}`}
      className="shrink-0 tabular-nums"
    >
      <span className="text-ok">+{git.additions}</span> <span className="text-danger">-{git.deletions}</span>
    </span>
  );
}
