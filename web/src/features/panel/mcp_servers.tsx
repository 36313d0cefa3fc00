import { useQuery } from "@tanstack/react-query";
import { Plug } from "lucide-react";
import { useState } from "react";
import { sentence } from "@/api/errors";
import type { ChatView, McpServerView } from "@/api/types.gen";
import { answerServer, listServers, withdrawServer } from "@/api/workspaces";
import { commandOf, isWaiting, standingOf } from "@/chat/mcp_servers";
import { queryClient } from "@/state/queries";
import { Button } from "@/ui/button";
import { toast } from "@/ui/toast";

/** The servers that the chat's workspace names. Only its owner may see what they would run. */
function useServers(chat: ChatView | undefined): McpServerView[] {
  const workspace = chat?.workspace_id ?? null;
  const isMine = chat?.my_role === "owner" && !chat.archived;
  const { data } = useQuery({
    // News of them come with the chat.
    queryKey: ["mcp-servers", workspace, chat?.context?.servers ?? 0],
    queryFn: () => listServers(workspace ?? ""),
    enabled: isMine && workspace !== null && chat.context !== null,
    placeholderData: (known) => known,
    retry: false,
  });
  return isMine && workspace !== null ? (data?.items ?? []) : [];
}

type Answer = "agree" | "deny" | "withdraw";

function useAnswer(workspace: string): [(server: McpServerView, answer: Answer) => void, boolean] {
  const [busy, setBusy] = useState(false);
  const send = (server: McpServerView, answer: Answer) => {
    setBusy(true);
    const sent =
      answer === "withdraw" ? withdrawServer(workspace, server.hash) : answerServer(workspace, server.hash, answer);
    sent
      .catch((error: unknown) => toast(sentence(error), { kind: "error" }))
      .then(() => queryClient.invalidateQueries({ queryKey: ["mcp-servers", workspace] }))
      .finally(() => setBusy(false));
  };
  return [send, busy];
}

/** Above the box to write in: servers of the project that nobody has answered about. The chat goes on without them. */
export function ServerQuestions({ chat }: { chat: ChatView | undefined }) {
  const waiting = useServers(chat).filter(isWaiting);
  const [first] = waiting;
  if (!first || !chat?.workspace_id) return null;
  return <ServerQuestion key={first.hash} server={first} workspace={chat.workspace_id} others={waiting.length - 1} />;
}

interface QuestionProps {
  server: McpServerView;
  workspace: string;
  others: number;
}

export function ServerQuestion({ server, workspace, others }: QuestionProps) {
  const [send, busy] = useAnswer(workspace);
  return (
    <section aria-label="MCP server" className="mb-2 rounded-lg border border-warn bg-bg1 p-4" data-testid="mcp-server">
      <p className="mb-2 flex items-center gap-2 font-medium">
        <Plug aria-hidden className="size-4 shrink-0 text-warn" />
        <span className="min-w-0 break-words">
          {server.state === "changed"
            ? `The project has changed its MCP server ${server.name}. May it run?`
            : `The project names an MCP server, ${server.name}. May it run?`}
        </span>
      </p>
      <Entry server={server} />
      <div className="mt-3 flex flex-wrap items-center justify-end gap-2">
        <span className="min-w-0 flex-1 text-small text-muted">
          {others > 0 ? `${others} more ${others === 1 ? "waits" : "wait"}.` : "The chat goes on without it."}
        </span>
        <Button onClick={() => send(server, "deny")} disabled={busy}>
          Deny
        </Button>
        <Button kind="primary" onClick={() => send(server, "agree")} disabled={busy}>
          Agree
        </Button>
      </div>
    </section>
  );
}

function Entry({ server }: { server: McpServerView }) {
  return (
    <div className="space-y-1">
      <pre className="max-h-40 overflow-auto rounded-md bg-bg2 px-3 py-2 font-mono text-small break-all whitespace-pre-wrap">
        {commandOf(server)}
      </pre>
      <p className="text-small break-words text-muted">
        In {server.folder}
        {server.env.length > 0 && `, with the variables ${server.env.join(", ")}`}
      </p>
    </div>
  );
}

/** In the panel: every server of the workspace, where it stands, and the answer that can be given or taken back. */
export function ServersPart({ chat }: { chat: ChatView }) {
  const servers = useServers(chat);
  if (servers.length === 0 || chat.workspace_id === null) return null;
  return <ServerList servers={servers} workspace={chat.workspace_id} />;
}

export function ServerList({ servers, workspace }: { servers: McpServerView[]; workspace: string }) {
  const [send, busy] = useAnswer(workspace);
  return (
    <ul aria-label="MCP servers of the project" className="flex flex-col gap-3">
      {servers.map((server) => (
        <li key={server.hash} className="flex flex-col gap-1.5">
          <span className="flex flex-wrap items-baseline gap-x-2">
            <span className="min-w-0 font-medium break-words">{server.name}</span>
            <span
              className={
                isWaiting(server) || server.error ? "min-w-0 text-small break-words text-warn" : "text-small text-muted"
              }
            >
              {standingOf(server)}
            </span>
          </span>
          <Entry server={server} />
          <span className="flex flex-wrap justify-end gap-2">
            {server.state === "agreed" && (
              <Button
                size="small"
                aria-label={`Withdraw ${server.name}`}
                onClick={() => send(server, "withdraw")}
                disabled={busy}
              >
                Withdraw
              </Button>
            )}
            {isWaiting(server) && (
              <Button
                size="small"
                aria-label={`Deny ${server.name}`}
                onClick={() => send(server, "deny")}
                disabled={busy}
              >
                Deny
              </Button>
            )}
            {server.state !== "agreed" && (
              <Button
                size="small"
                aria-label={`Agree ${server.name}`}
                onClick={() => send(server, "agree")}
                disabled={busy}
              >
                Agree
              </Button>
            )}
          </span>
        </li>
      ))}
    </ul>
  );
}
