import { useQuery } from "@tanstack/react-query";
import { GitBranch, TriangleAlert } from "lucide-react";
import { type ReactNode, useEffect, useMemo } from "react";
import { sentence } from "@/api/errors";
import { get } from "@/api/http";
import type { ChatView, DiffView, RepositoryState } from "@/api/types.gen";
import { Counts } from "@/features/panel/diff_line";
import { Empty, NotRunning, StartupLines, useWorkspaceStatus, Waiting } from "@/features/panel/workspace_state";
import { type DiffFile, gitFiles } from "@/lib/diff";
import { queryClient } from "@/state/queries";
import { type GitState, useGit } from "@/state/repository_stream";
import { Button } from "@/ui/button";
import { Ago } from "@/ui/relative_time";

export interface WorkingTree {
  git: GitState;
  files: DiffFile[];
  /** The status of the chat's workspace; null if it is unknown or there is none. */
  status: string | null;
  canRefresh: boolean;
  refresh: () => void;
}

/** Return the repositories of a chat and their changes, while its workspace runs. */
export function useWorkingTree(chat: ChatView): WorkingTree {
  const status = useWorkspaceStatus(chat);
  const { refresh, ...git } = useGit(chat.id, status === "running");
  const { repositories } = git;
  const files = useMemo(() => filesOf(repositories), [repositories]);
  const hasEnded = git.conn.phase === "stopped";
  useEffect(() => {
    // The stream ends with the workspace, so the status of the workspace is loaded again.
    if (hasEnded) void queryClient.invalidateQueries({ queryKey: ["workspaces"] });
  }, [hasEnded]);
  return { git, files, status, canRefresh: status === "running", refresh };
}

// Parsed diffs by repository state. A changed state is a new object.
const read = new WeakMap<RepositoryState, DiffFile[]>();

function filesOf(repositories: readonly RepositoryState[]): DiffFile[] {
  return repositories.flatMap((one) => {
    const files = read.get(one) ?? gitFiles(one.diff, one.root);
    read.set(one, files);
    // With several repositories, the paths need the name of the repository.
    return repositories.length > 1 ? files.map((file) => ({ ...file, path: `${one.root}/${file.path}` })) : files;
  });
}

/** The state of the repositories, and the reason if there is nothing to show. */
export function WorkingTreeState({ chat, tree }: { chat: ChatView; tree: WorkingTree }) {
  const { git, status } = tree;
  if (chat.workspace_id === null) {
    return <Empty text="This chat has no workspace. Choose one below the message to see what changes in it." />;
  }
  if (status !== null && status !== "running") return <NotRunning chat={chat} status={status} />;
  if (!git.isKnown) {
    const isAway = git.conn.phase === "stopped" || git.conn.phase === "backoff";
    return isAway ? <Unavailable tree={tree} /> : <Waiting text="Looking at the repositories" />;
  }
  if (git.repositories.length === 0) {
    return (
      <>
        <StartupLines chat={chat} />
        <Empty text="No repository. Nothing is under version control where this chat works." />
      </>
    );
  }
  return (
    <>
      {git.conn.phase !== "live" && git.conn.phase !== "connecting" && (
        <p role="status" className="flex items-center gap-2 border-b border-line px-3 py-1.5 text-small text-warn">
          <TriangleAlert aria-hidden className="size-4 shrink-0" />
          <span className="flex-1">As last seen: the workspace does not answer.</span>
          <Button size="small" onClick={tree.refresh}>
            Try again
          </Button>
        </p>
      )}
      <ul aria-label="Repositories" className="shrink-0 border-b border-line px-3 py-2">
        {git.repositories.map((one) => (
          <Repository key={one.root} one={one} />
        ))}
      </ul>
      {tree.files.length === 0 && git.repositories.every((one) => one.changed_files === 0) && (
        <Empty text="Clean. Everything is committed." />
      )}
    </>
  );
}

function Repository({ one, children }: { one: RepositoryState | DiffView; children?: ReactNode }) {
  const isLong = "untracked_omitted" in one && one.changed_files > 0 && one.diff.startsWith("[");
  const omitted = "untracked_omitted" in one ? one.untracked_omitted : 0;
  return (
    <li className="py-0.5">
      <span className="flex items-center gap-2">
        <GitBranch className="size-4 shrink-0 text-muted" aria-hidden />
        <span className="min-w-0 flex-1 truncate" title={one.root}>
          {one.root.split("/").at(-1)} {one.branch && <span className="text-muted">{one.branch}</span>}
        </span>
        <span className="shrink-0 text-small text-muted">
          {one.changed_files} {one.changed_files === 1 ? "file" : "files"}
        </span>
        <Counts added={one.additions} removed={one.deletions} />
        {children}
      </span>
      {isLong && <span className="block pl-6 text-small text-warn">Too much changed to show it line by line.</span>}
      {omitted > 0 && (
        <span className="block pl-6 text-small text-muted">
          {omitted} new {omitted === 1 ? "file is" : "files are"} not shown: too large, not text, or too many.
        </span>
      )}
    </li>
  );
}

const REASONS: Record<string, string> = {
  no_workspace: "This chat has no workspace.",
  workspace_not_running: "The workspace does not run.",
  agent_unreachable: "The workspace does not answer.",
  too_many_streams: "This workspace is watched in too many windows. Close one of them.",
};

function Unavailable({ tree }: { tree: WorkingTree }) {
  return (
    <Empty text={REASONS[tree.git.conn.refusal ?? ""] ?? "The changes cannot be seen now."}>
      <Button onClick={tree.refresh}>Try again</Button>
    </Empty>
  );
}

/** The last known change counts, for readers of the chat, who may not use its workspace. */
export function StoredSummary({ chat }: { chat: ChatView }) {
  const seen = chat.git?.refreshed_at ?? null;
  const { data, error, refetch } = useQuery({
    // An event of the chat invalidates this query.
    queryKey: ["diff", chat.id, seen],
    queryFn: () => get<{ items: DiffView[] }>(`/chats/${chat.id}/diff`),
    retry: false,
  });
  if (error) {
    return (
      <Empty text={sentence(error)}>
        <Button onClick={() => refetch()}>Try again</Button>
      </Empty>
    );
  }
  if (!data) return <Waiting text="Looking at the repositories" />;
  if (data.items.length === 0) return <Empty text="No change of a repository was seen in this chat." />;
  return (
    <>
      <ul aria-label="Repositories" className="border-b border-line px-3 py-2">
        {data.items.map((one) => (
          <Repository key={one.root} one={one}>
            <Ago at={one.refreshed_at} className="text-small text-muted" />
          </Repository>
        ))}
      </ul>
      <Empty text="Only the owner of the chat sees the lines. Edits of the agent are under This chat." />
    </>
  );
}
