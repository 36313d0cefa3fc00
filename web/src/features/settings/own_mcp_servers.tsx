import { useEffect, useRef, useState } from "react";
import { useSearchParams } from "react-router";
import { sentence } from "@/api/errors";
import { disconnectMcpServer } from "@/api/mcp_servers";
import type { McpServerView } from "@/api/types.gen";
import { Connect, loginText, nameOf, needsLogin, ServerIcon } from "@/features/mcp/connection";
import { ServerTable } from "@/features/mcp/server_table";
import { reloadMcpServers, useMcpServers } from "@/state/mcp_servers";
import { Button } from "@/ui/button";
import { cx } from "@/ui/cx";
import { Confirm } from "@/ui/dialog";
import { Notice } from "@/ui/notice";
import { shortTime } from "@/ui/relative_time";
import { toast } from "@/ui/toast";
import { Section } from "./settings_form";

/** The MCP servers that the user can use: the logins at them, and the user's own servers. */
export function Connections() {
  const { data, error } = useMcpServers();
  const wanted = useSearchParams()[0].get("server");
  const servers = (data?.items ?? []).filter((one) => one.enabled);
  return (
    <>
      <Section
        title="Connections"
        text="MCP servers give the agent more tools. Which of them a chat uses is chosen below its message box."
      >
        {error && <Notice kind="error">{sentence(error)}</Notice>}
        {data && servers.length === 0 && (
          <p className="rounded-lg border border-dashed border-line p-6 text-center text-muted">No servers yet.</p>
        )}
        {servers.length > 0 && (
          <ul aria-label="Connections" className="flex flex-col gap-3">
            {servers.map((one) => (
              <Connection key={one.id} server={one} isWanted={one.id === wanted} />
            ))}
          </ul>
        )}
      </Section>
      <Section title="Your own servers" text="They are for your chats only.">
        {data && (
          <ServerTable
            label="Your own servers"
            servers={data.items.filter((one) => one.is_own && one.workspace_id === null)}
            isOwn
            canChange
          />
        )}
      </Section>
    </>
  );
}

function Connection({ server, isWanted }: { server: McpServerView; isWanted: boolean }) {
  const place = useRef<HTMLLIElement>(null);
  const [asks, setAsks] = useState(false);
  useEffect(() => {
    if (isWanted) place.current?.scrollIntoView({ block: "center" });
  }, [isWanted]);
  const { login } = server;
  const disconnect = () =>
    disconnectMcpServer(server.id)
      .then(({ revoked, error }) => {
        if (revoked === false)
          toast(`Your login is deleted here, but the server did not end it: ${error ?? "it gave no reason"}`, {
            kind: "error",
          });
      })
      .catch((error: unknown) => toast(sentence(error), { kind: "error" }))
      .finally(() => void reloadMcpServers());
  const hasLogin = server.auth_type === "oauth2";
  return (
    <li
      ref={place}
      className={cx(
        "flex flex-wrap items-start gap-3 rounded-lg border px-3 py-2.5",
        isWanted && needsLogin(server) ? "border-accent" : "border-line",
      )}
    >
      <ServerIcon icon={server.icon} className="mt-1" />
      <div className="min-w-0 flex-1 basis-60">
        <p className="font-medium break-words">{nameOf(server)}</p>
        {server.description && <p className="text-small break-words text-muted">{server.description}</p>}
        <p
          className={cx(
            "text-small break-words",
            hasLogin && (login.state === "expired" || login.state === "insufficient") ? "text-warn" : "text-muted",
          )}
        >
          {loginText(server)}
          {login.state === "connected" && login.connected_at && <> Since {shortTime(login.connected_at)}.</>}
        </p>
        {hasLogin && login.state !== "none" && (login.scopes ?? []).length > 0 && (
          <p className="text-small break-words text-muted">The agent may use: {(login.scopes ?? []).join(", ")}</p>
        )}
      </div>
      {hasLogin && (
        <div className="flex flex-wrap justify-end gap-1.5">
          <Connect server={server} />
          {login.state !== "none" && (
            <Button
              size="small"
              kind="danger"
              aria-label={`Disconnect ${nameOf(server)}`}
              onClick={() => setAsks(true)}
            >
              Disconnect
            </Button>
          )}
        </div>
      )}
      <Confirm
        open={asks}
        onOpenChange={setAsks}
        title={`Disconnect ${nameOf(server)}?`}
        text="The agent can no longer use it with your account."
        action="Disconnect"
        danger
        onConfirm={() => void disconnect()}
      />
    </li>
  );
}
