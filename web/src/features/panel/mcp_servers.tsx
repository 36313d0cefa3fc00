import { useQuery } from "@tanstack/react-query";
import { Plug } from "lucide-react";
import { type MouseEvent, useRef, useState } from "react";
import { Link } from "react-router";
import { sentence } from "@/api/errors";
import type { ChatView, WorkspaceMcpServerView } from "@/api/types.gen";
import { answerServer, listServers, withdrawServer } from "@/api/workspaces";
import { isWaiting, lacksLogin, statusOf, targetOf } from "@/chat/mcp_servers";
import { reloadMcpServers } from "@/state/mcp_servers";
import { queryClient } from "@/state/queries";
import { Button } from "@/ui/button";
import { cx } from "@/ui/cx";
import { toast } from "@/ui/toast";

/** Return the MCP servers that the chat's workspace defines. Only its owner may see their commands. */
function useServers(chat: ChatView | undefined): WorkspaceMcpServerView[] {
  const workspace = chat?.workspace_id ?? null;
  const isMine = chat?.my_role === "owner" && !chat.archived;
  const { data } = useQuery({
    // An event of the chat invalidates this query.
    queryKey: ["mcp-servers", workspace, chat?.context?.servers ?? 0],
    queryFn: () => listServers(workspace ?? ""),
    enabled: isMine && workspace !== null && chat.context !== null,
    placeholderData: (known) => known,
    retry: false,
  });
  return isMine && workspace !== null ? (data?.items ?? []) : [];
}

type Answer = "agree" | "deny" | "withdraw";

function useAnswer(workspace: string): [(server: WorkspaceMcpServerView, answer: Answer) => void, boolean] {
  const [busy, setBusy] = useState(false);
  const send = (server: WorkspaceMcpServerView, answer: Answer) => {
    setBusy(true);
    const sent =
      answer === "withdraw" ? withdrawServer(workspace, server.hash) : answerServer(workspace, server.hash, answer);
    sent
      .catch((error: unknown) => toast(sentence(error), { kind: "error" }))
      // A server with an address appears in the list of all servers, or leaves it.
      .then(() => void reloadMcpServers())
      .then(() => queryClient.invalidateQueries({ queryKey: ["mcp-servers", workspace] }))
      .finally(() => setBusy(false));
  };
  return [send, busy];
}

/** The questions about new MCP servers of the project, above the composer. The chat continues without an answer. */
export function ServerQuestions({ chat }: { chat: ChatView | undefined }) {
  const waiting = useServers(chat).filter(isWaiting);
  const place = useRef<HTMLDivElement>(null);
  const [first] = waiting;
  if (!first || !chat?.workspace_id) return null;
  return (
    <div ref={place} tabIndex={-1} className="outline-none">
      <ServerQuestion
        key={first.hash}
        server={first}
        workspace={chat.workspace_id}
        others={waiting.length - 1}
        // The focus does not move to the next question: pressing the key twice would answer that too.
        onPress={() => place.current?.focus()}
      />
    </div>
  );
}

interface QuestionProps {
  server: WorkspaceMcpServerView;
  workspace: string;
  others: number;
  /** Called before the answer is sent, to move the focus away from the button. */
  onPress?: () => void;
}

export function ServerQuestion({ server, workspace, others, onPress }: QuestionProps) {
  const [send, busy] = useAnswer(workspace);
  const [isWhole, showWhole] = useWhole(server);
  const answer = (given: Answer) => (event: MouseEvent) => {
    // The second click of a double click would answer the next question.
    if (event.detail > 1) return;
    onPress?.();
    send(server, given);
  };
  return (
    <section aria-label="MCP server" className="mb-2 rounded-lg border border-warn bg-bg1 p-4" data-testid="mcp-server">
      <p className="flex items-start gap-2 font-medium">
        <Plug aria-hidden className="mt-1 size-4 shrink-0 text-warn" />
        <span className="min-w-0 break-words">{questionOf(server)}</span>
      </p>
      <p className="mb-2 pl-6 text-small text-muted">
        {server.url === null
          ? "It is a program that gives the agent more tools. It runs in the workspace, with this command:"
          : "It gives the agent more tools. What the agent sends to a tool goes to this address:"}
      </p>
      <Entry server={server} isWhole={isWhole} />
      <div className="mt-3 flex flex-wrap items-center justify-end gap-2">
        <span className="min-w-0 flex-1 text-small text-muted">
          {others > 0
            ? `${others} more ${others === 1 ? "server waits" : "servers wait"} for your answer.`
            : "The chat works without it."}
        </span>
        <Button onClick={answer("deny")} disabled={busy}>
          Deny
        </Button>
        {isWhole ? (
          <Button kind="primary" onClick={answer("agree")} disabled={busy}>
            Allow
          </Button>
        ) : (
          <Button
            onClick={() => {
              onPress?.();
              showWhole();
            }}
          >
            Show all of it
          </Button>
        )}
      </div>
    </section>
  );
}

function questionOf({ name, state, url }: WorkspaceMcpServerView): string {
  const may = url === null ? "May it run?" : "May Rookery connect to it?";
  if (state === "changed") return `This project has changed its MCP server ${name}. ${may}`;
  return url === null
    ? `This project wants to start the MCP server ${name}. ${may}`
    : `This project wants to use the MCP server ${name}. ${may}`;
}

/** Longer commands are collapsed. They must be expanded before the user can allow them. */
const FOLDED_CHARS = 400;

function useWhole(server: WorkspaceMcpServerView): [boolean, () => void] {
  const [shown, setShown] = useState("");
  const isLong = [targetOf(server), ...server.headers, ...server.env].join(", ").length > FOLDED_CHARS;
  return [!isLong || shown === server.hash, () => setShown(server.hash)];
}

function Entry({ server, isWhole }: { server: WorkspaceMcpServerView; isWhole: boolean }) {
  const target = targetOf(server);
  const what = server.url === null ? "Command" : "Address";
  // A token of the workspace that is sent to a stranger must be seen here.
  const values =
    server.env.length > 0 ? `, with the value of the ${named("environment variable", server.env, isWhole)}` : "";
  return (
    <div tabIndex={0} role="group" aria-label={`${what} of ${server.name}`} className="max-h-[40dvh] overflow-auto">
      <pre className="rounded-md bg-bg2 px-3 py-2 font-mono text-small break-words whitespace-pre-wrap">
        {isWhole ? target : target.slice(0, FOLDED_CHARS)}
        {!isWhole && target.length > FOLDED_CHARS && (
          <span className="font-sans text-warn">
            {" "}
            … and {(target.length - FOLDED_CHARS).toLocaleString("en")} more characters
          </span>
        )}
      </pre>
      <p className="mt-1 text-small break-words text-muted">
        {server.url === null ? `It starts in ${server.folder}.` : `The file is in ${server.folder}.`}
        {server.headers.length > 0 && ` It gets the ${named("header", server.headers, isWhole)} of the file${values}.`}
        {server.env.length > 0 &&
          server.url === null &&
          ` It gets the ${named("environment variable", server.env, isWhole)}.`}
      </p>
    </div>
  );
}

/** Return the names after the word for them, or only their number. */
function named(word: string, names: string[], isWhole: boolean): string {
  const words = names.length === 1 ? word : `${word}s`;
  return isWhole ? `${words} ${names.join(", ")}` : `${names.length} ${words}`;
}

/** The list of the workspace's MCP servers in the panel, with their status and the user's answers. */
export function ServersPart({ chat }: { chat: ChatView }) {
  const servers = useServers(chat);
  if (servers.length === 0 || chat.workspace_id === null) return null;
  return <ServerList servers={servers} workspace={chat.workspace_id} />;
}

export function ServerList({ servers, workspace }: { servers: WorkspaceMcpServerView[]; workspace: string }) {
  return (
    <section className="mt-4">
      <h3 className="mb-2 font-medium">MCP servers of the project</h3>
      <ul aria-label="MCP servers of the project" className="flex flex-col gap-4">
        {servers.map((server) => (
          <ListedServer key={server.hash} server={server} workspace={workspace} />
        ))}
      </ul>
    </section>
  );
}

function ListedServer({ server, workspace }: { server: WorkspaceMcpServerView; workspace: string }) {
  const [send, busy] = useAnswer(workspace);
  const [isWhole, showWhole] = useWhole(server);
  const button = (label: string, act: () => void) => (
    <Button size="small" aria-label={`${label} ${server.name}`} onClick={act} disabled={busy}>
      {label}
    </Button>
  );
  return (
    <li className="flex flex-col gap-1.5">
      <span className="flex flex-wrap items-baseline gap-x-2">
        <span className="min-w-0 font-medium break-words">{server.name}</span>
        <span
          className={cx(
            "min-w-0 text-small break-words",
            isWaiting(server) || server.error ? "text-warn" : "text-muted",
          )}
        >
          {statusOf(server)}
        </span>
      </span>
      <Entry server={server} isWhole={isWhole} />
      <span className="flex flex-wrap justify-end gap-2">
        {lacksLogin(server) && (
          <Link
            className="inline-flex min-h-8 items-center text-small text-accent underline pointer-coarse:min-h-11"
            to={`/settings/connections?server=${server.server}`}
          >
            Log in to {server.name}
          </Link>
        )}
        {!isWhole && (
          <Button size="small" aria-label={`Show all of the entry of ${server.name}`} onClick={showWhole}>
            Show all of it
          </Button>
        )}
        {server.state === "agreed" && button("Withdraw", () => send(server, "withdraw"))}
        {isWaiting(server) && button("Deny", () => send(server, "deny"))}
        {server.state !== "agreed" && isWhole && button("Allow", () => send(server, "agree"))}
      </span>
    </li>
  );
}
