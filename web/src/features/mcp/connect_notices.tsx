/** The servers of a chat that need the user to log in, above the message box. */
import { Plug } from "lucide-react";
import { useEffect } from "react";
import { Link } from "react-router";
import { useStore } from "zustand";
import type { ChatView, McpServerView } from "@/api/types.gen";
import { Connect, isUsed, loginText, nameOf, needsLogin } from "@/features/mcp/connection";
import type { ChatSession } from "@/state/chat_session";
import { reloadMcpServers, useMcpServers } from "@/state/mcp_servers";

/** A login that ended during a turn is noticed when the turn ends. */
export function ConnectNotices({ chat, session }: { chat: ChatView; session: ChatSession }) {
  const status = useStore(session.store, (state) => state.data.status);
  const { data } = useMcpServers();
  // biome-ignore lint/correctness/useExhaustiveDependencies: the state of a login can change in a turn
  useEffect(() => void reloadMcpServers(), [status]);
  const waiting = (data?.items ?? []).filter(
    (one) =>
      one.enabled && needsLogin(one) && isUsed(one, { serverIds: chat.mcp_server_ids, workspaceId: chat.workspace_id }),
  );
  return waiting.map((one) => <ConnectNotice key={one.id} server={one} />);
}

export function ConnectNotice({ server: one }: { server: McpServerView }) {
  return (
    <section
      aria-label={`Login at ${nameOf(one)}`}
      className="mb-2 flex flex-wrap items-center gap-3 rounded-lg border border-warn bg-bg1 px-4 py-3"
      data-testid="connect-notice"
    >
      <Plug aria-hidden className="size-4 shrink-0 text-warn" />
      <div className="min-w-0 flex-1 basis-60">
        <p className="font-medium break-words">{nameOf(one)} needs you to log in</p>
        <p className="text-small break-words text-muted">
          {one.login.state === "none" ? "Until then its tools are missing in this chat." : loginText(one)}{" "}
          <Link className="text-accent underline" to={`/settings/connections?server=${one.id}`}>
            Settings
          </Link>
        </p>
      </div>
      <Connect server={one} small={false} />
    </section>
  );
}
