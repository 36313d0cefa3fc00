/** The state of a chat's workspace, for the tabs of the panel. */
import { useQuery } from "@tanstack/react-query";
import { type ReactNode, useEffect, useState } from "react";
import { sentence } from "@/api/errors";
import type { ChatView } from "@/api/types.gen";
import { listWorkspaces, startWorkspace } from "@/api/workspaces";
import { describe, isStartingUp, reasonOf } from "@/chat/workspace_health";
import { isOpenNetwork, networkName, networkWords } from "@/chat/workspace_networks";
import { WorkspaceStartup } from "@/features/workspaces/workspace_startup";
import { queryClient } from "@/state/queries";
import { Commands } from "@/ui/backtick_code";
import { Button } from "@/ui/button";
import { Notice } from "@/ui/notice";
import { Spinner } from "@/ui/spinner";
import { toast } from "@/ui/toast";

function useList(chat: ChatView) {
  return useQuery({
    queryKey: ["workspaces"],
    queryFn: listWorkspaces,
    enabled: chat.workspace_id !== null,
    retry: false,
    refetchInterval: (query) =>
      query.state.data?.items.some((one) => one.id === chat.workspace_id && isStartingUp(one)) ? 2_000 : false,
  });
}

/** Return the name of the chat's workspace, if it is known. */
export function useWorkspaceName(chat: ChatView): string | null {
  return useList(chat).data?.items.find((one) => one.id === chat.workspace_id)?.name ?? null;
}

/** Return the status of the chat's workspace; null if it is unknown or there is none. */
export function useWorkspaceStatus(chat: ChatView): string | null {
  const { data, isError } = useList(chat);
  if (chat.workspace_id === null) return null;
  const found = data?.items.find((one) => one.id === chat.workspace_id)?.status ?? "deleted";
  return data ? found : isError ? "running" : null;
}

/** The problem of the chat's workspace, if there is one, and its network. Renders nothing before the first start. */
export function WorkspaceLines({ chat }: { chat: ChatView }) {
  const found = useList(chat).data?.items.find((one) => one.id === chat.workspace_id);
  if (!found) return null;
  const reason = reasonOf(found);
  return (
    <>
      {reason && (
        <Notice kind="error" className="mb-2">
          <Commands text={describe(found)} />
        </Notice>
      )}
      <WorkspaceStartup workspace={found} className="mb-2" />
      {found.network && <NetworkLine network={found.network} />}
    </>
  );
}

/** The startup script of the chat's workspace, while it runs or after it failed. */
export function StartupLines({ chat }: { chat: ChatView }) {
  const found = useList(chat).data?.items.find((one) => one.id === chat.workspace_id);
  return found ? <WorkspaceStartup workspace={found} className="m-3 text-small" /> : null;
}

function NetworkLine({ network }: { network: string }) {
  return (
    <p className={`mb-2 ${isOpenNetwork(network) ? "text-warn" : "text-muted"}`}>
      Network: {networkName(network)}. {networkWords(network)}
    </p>
  );
}

export function NotRunning({ chat, status }: { chat: ChatView; status: string }) {
  const [asks, setAsks] = useState(false);
  const found = useList(chat).data?.items.find((one) => one.id === chat.workspace_id);
  if (status === "deleted") return <Empty text="The workspace of this chat was deleted." />;
  const isOnItsWay = status !== "stopped" && status !== "failed";
  const text = found ? describe(found) : `The workspace is ${status}.`;
  return (
    <Empty text={<Commands text={text} />}>
      {isOnItsWay ? (
        <Spinner />
      ) : (
        <Button
          disabled={asks}
          onClick={() => {
            setAsks(true);
            startWorkspace(chat.workspace_id ?? "")
              .then(() => queryClient.invalidateQueries({ queryKey: ["workspaces"] }))
              .catch((error: unknown) => toast(sentence(error), { kind: "error" }))
              .finally(() => setAsks(false));
          }}
        >
          Start it
        </Button>
      )}
    </Empty>
  );
}

/** A loading text. It appears after a delay, because most loads are short. */
export function Waiting({ text }: { text: string }) {
  const [isLate, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), 150);
    return () => clearTimeout(timer);
  }, []);
  return (
    <p role="status" className="m-auto flex items-center gap-2 p-6 text-muted">
      {isLate && (
        <>
          <Spinner /> {text}
        </>
      )}
    </p>
  );
}

export function Empty({ text, children }: { text: ReactNode; children?: ReactNode }) {
  return (
    <div className="m-auto flex max-w-72 flex-col items-center gap-3 p-6 text-center text-muted">
      <p className="max-w-full [overflow-wrap:anywhere]">{text}</p>
      {children}
    </div>
  );
}
