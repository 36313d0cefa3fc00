/** The choice of the MCP servers that a chat uses: a switch for each. */
import { Plug, TriangleAlert } from "lucide-react";
import { useState } from "react";
import { Link } from "react-router";
import type { McpServerView } from "@/api/types.gen";
import { Connect, isUsed, loginText, nameOf, needsLogin } from "@/features/mcp/connection";
import { useMcpServers } from "@/state/mcp_servers";
import { Button } from "@/ui/button";
import { Popover } from "@/ui/popover";
import { Switch } from "@/ui/switch";

interface Props {
  /** The ids of the chosen servers; null if those that new chats use by default are chosen. */
  serverIds: string[] | null;
  workspaceId: string | null;
  onServers: (ids: string[]) => void;
}

/** Absent if there are no servers. */
export function ServerPicker({ serverIds, workspaceId, onServers }: Props) {
  const [open, setOpen] = useState(false);
  const { data } = useMcpServers();
  const servers = (data?.items ?? []).filter(
    (one) => one.enabled && (one.workspace_id === null || one.workspace_id === workspaceId),
  );
  if (servers.length === 0) return null;
  const isOn = (one: McpServerView) => isUsed(one, { serverIds, workspaceId });
  const on = servers.filter(isOn);
  const switchTo = (server: McpServerView, to: boolean) => {
    // Ids of servers that are not in the list now stay chosen.
    const known = serverIds ?? on.filter((one) => one.workspace_id === null).map((one) => one.id);
    onServers(to ? [...known, server.id] : known.filter((id) => id !== server.id));
  };
  const waiting = on.some(needsLogin);
  return (
    <Popover
      label="MCP servers"
      side="top"
      open={open}
      onOpenChange={setOpen}
      className="w-88 max-w-[calc(100vw-2rem)]"
      trigger={
        <Button
          size="small"
          kind="ghost"
          aria-label={`MCP servers: ${on.length} on${waiting ? ", one needs your login" : ""}`}
          className="shrink-0 text-muted! max-sm:px-1"
        >
          {waiting ? (
            <TriangleAlert aria-hidden className="size-3.5 text-warn" />
          ) : (
            <Plug aria-hidden className="size-3.5" />
          )}
          <span className="tabular-nums max-sm:hidden">{on.length}</span>
        </Button>
      }
    >
      <ul aria-label="MCP servers" className="flex flex-col gap-1">
        {servers.map((one) => (
          <li key={one.id} className="flex items-start justify-between gap-3">
            <div className="min-w-0 flex-1">
              <Switch
                label={nameOf(one)}
                hint={hintOf(one)}
                checked={isOn(one)}
                disabled={isLocked(one)}
                onChange={(to) => switchTo(one, to)}
              />
            </div>
            {needsLogin(one) && <Connect server={one} />}
          </li>
        ))}
      </ul>
      <p className="mt-2 border-t border-line pt-2 text-small">
        <Link className="text-accent underline" to="/settings/connections">
          Connections
        </Link>
      </p>
    </Popover>
  );
}

const isLocked = (server: McpServerView) => server.availability === "force_on" || server.workspace_id !== null;

function hintOf(server: McpServerView): string {
  if (server.availability === "force_on") return "Always on";
  if (needsLogin(server)) return loginText(server);
  return server.workspace_id === null ? server.description : "Named by the project of this workspace";
}
