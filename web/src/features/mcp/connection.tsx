/** The login of the user at an MCP server: its state in words, and the buttons that change it. */
import { Plug } from "lucide-react";
import type { McpServerView } from "@/api/types.gen";
import { type McpLogin, useMcpLogin } from "@/state/mcp_servers";
import { Button } from "@/ui/button";
import { cx } from "@/ui/cx";

export const nameOf = (server: Pick<McpServerView, "display_name" | "slug">) => server.display_name || server.slug;

export const needsLogin = (server: McpServerView) =>
  server.auth_type === "oauth2" && server.login.state !== "connected";

interface Choice {
  /** The ids of the chosen servers; null if those that new chats use by default are chosen. */
  serverIds: readonly string[] | null;
  workspaceId: string | null;
}

/** Return whether a chat uses the server. One of a project is used by all chats of its workspace. */
export function isUsed(server: McpServerView, { serverIds, workspaceId }: Choice): boolean {
  if (server.workspace_id !== null) return server.workspace_id === workspaceId;
  return server.availability === "force_on" || (serverIds?.includes(server.id) ?? server.availability === "default_on");
}

/** Return the state of the login as a sentence. */
export function loginText({ auth_type, login }: McpServerView): string {
  if (auth_type !== "oauth2") return "No login is needed.";
  switch (login.state) {
    case "connected":
      return "Connected.";
    case "insufficient":
      return `The server asks for more permissions: ${(login.missing_scopes ?? []).join(", ")}. Connect again to agree.`;
    case "expired":
      return `Your login has ended. ${login.reason ?? ""}`.trim();
    case "none":
      return "Not connected.";
  }
}

/** The icon of a server: a character, or a plug. */
export function ServerIcon({ icon, className }: { icon: string; className?: string }) {
  const isCharacter = icon !== "" && [...icon].length <= 2;
  return isCharacter ? (
    <span aria-hidden className={cx("inline-grid size-4 shrink-0 place-items-center text-small", className)}>
      {icon}
    </span>
  ) : (
    <Plug aria-hidden className={cx("size-4 shrink-0 text-muted", className)} />
  );
}

/** The button that connects, with the progress and the problem of the login. */
export function Connect({ server, small = true }: { server: McpServerView; small?: boolean }) {
  const login = useMcpLogin(server.id);
  const again = server.login.state !== "none";
  return (
    <span className="flex min-w-0 flex-col items-end gap-1">
      {login.state === "idle" ? (
        <Button
          size={small ? "small" : "medium"}
          kind={needsLogin(server) ? "primary" : "plain"}
          aria-label={`${again ? "Reconnect" : "Connect"} ${nameOf(server)}`}
          onClick={login.start}
        >
          {again ? "Reconnect" : "Connect"}
        </Button>
      ) : (
        <Button size={small ? "small" : "medium"} onClick={login.cancel}>
          Cancel
        </Button>
      )}
      <LoginProgress login={login} />
    </span>
  );
}

function LoginProgress({ login }: { login: McpLogin }) {
  return (
    <span role="status" className="text-right text-small break-words empty:hidden">
      {login.problem && <span className="text-danger">{login.problem}</span>}
      {login.link && (
        <a className="text-accent underline" href={login.link} target="_blank" rel="noopener noreferrer">
          Open the login page
        </a>
      )}
      {!login.link && login.state !== "idle" && (
        <span className="text-muted">{login.state === "opening" ? "Opening" : "Finish the login in the window"}</span>
      )}
    </span>
  );
}
