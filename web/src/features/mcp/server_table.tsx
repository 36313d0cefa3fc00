/** A list of MCP servers that can be changed: those of the deployment, or the user's own. */
import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { sentence } from "@/api/errors";
import { deleteMcpServer } from "@/api/mcp_servers";
import type { McpServerView } from "@/api/types.gen";
import { CatalogDialog } from "@/features/mcp/catalog_dialog";
import { nameOf, ServerIcon } from "@/features/mcp/connection";
import { ServerDialog } from "@/features/mcp/server_dialog";
import { TestResult } from "@/features/mcp/test_result";
import { Table } from "@/features/settings/responsive_table";
import { reloadMcpServers, runMcpTest } from "@/state/mcp_servers";
import { Button } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { toast } from "@/ui/toast";

const LOGINS = { none: "None", api_key: "Key", custom_headers: "Headers", oauth2: "Per user" };
const USES = { force_on: "Always", default_on: "On", default_off: "Off" };

interface Props {
  label: string;
  servers: McpServerView[];
  isOwn: boolean;
  canChange: boolean;
}

export function ServerTable({ label, servers, isOwn, canChange }: Props) {
  const [adding, setAdding] = useState(false);
  const [editing, setEditing] = useState<McpServerView | null>(null);
  const [deleting, setDeleting] = useState<McpServerView | null>(null);
  const [testing, setTesting] = useState<McpServerView | null>(null);
  const test = useMutation({
    mutationFn: runMcpTest,
    onError: (error) => {
      setTesting(null);
      toast(sentence(error), { kind: "error" });
    },
  });
  const remove = useMutation({
    mutationFn: deleteMcpServer,
    onSettled: reloadMcpServers,
    onError: (error) => toast(sentence(error), { kind: "error" }),
  });
  const run = (server: McpServerView) => {
    test.reset();
    setTesting(server);
    test.mutate(server);
  };
  // The list is loaded again after a login, and the dialogs show its result.
  const current = testing && (servers.find((one) => one.id === testing.id) ?? testing);
  return (
    <>
      {canChange && (
        <Button kind={isOwn ? "plain" : "primary"} className="self-start" onClick={() => setAdding(true)}>
          Add server
        </Button>
      )}
      <Table
        label={label}
        rows={servers}
        keyOf={(one) => one.id}
        empty={isOwn ? "No servers of your own." : "No MCP servers yet."}
        columns={[
          {
            title: "Name",
            cell: (one) => (
              <span className="flex min-w-0 items-center gap-2">
                <ServerIcon icon={one.icon} />
                <span className="min-w-0">
                  <span className="font-medium break-words">{nameOf(one)}</span>
                  {!one.enabled && <span className="ml-2 text-muted">off</span>}
                  <span className="block text-small break-all text-muted">{one.url}</span>
                </span>
              </span>
            ),
          },
          { title: "Login", cell: (one) => LOGINS[one.auth_type] },
          { title: "In chats", cell: (one) => USES[one.availability] },
          {
            title: "",
            right: true,
            cell: (one) =>
              canChange && (
                <span className="inline-flex gap-1.5">
                  <Button size="small" aria-label={`Test ${nameOf(one)}`} onClick={() => run(one)}>
                    Test
                  </Button>
                  <Button size="small" aria-label={`Edit ${nameOf(one)}`} onClick={() => setEditing(one)}>
                    Edit
                  </Button>
                  <Button
                    size="small"
                    kind="danger"
                    aria-label={`Delete ${nameOf(one)}`}
                    onClick={() => setDeleting(one)}
                  >
                    Delete
                  </Button>
                </span>
              ),
          },
        ]}
      />
      {adding && (
        <CatalogDialog
          isOwn={isOwn}
          onClose={() => setAdding(false)}
          onAdded={(server) => {
            setAdding(false);
            run(server);
          }}
        />
      )}
      {editing && (
        <ServerDialog
          server={editing}
          isOwn={isOwn}
          onClose={() => setEditing(null)}
          onSaved={() => {
            setEditing(null);
            toast("Saved.", { kind: "ok" });
          }}
        />
      )}
      {current && (
        <TestResult
          server={current}
          result={test.data ?? null}
          onAgain={() => run(current)}
          onEdit={() => {
            setTesting(null);
            setEditing(current);
          }}
          onClose={() => setTesting(null)}
        />
      )}
      <Confirm
        open={deleting !== null}
        onOpenChange={() => setDeleting(null)}
        title={`Delete ${deleting ? nameOf(deleting) : ""}?`}
        text={
          isOwn
            ? "Your chats no longer use it, and your login is deleted."
            : "Chats no longer use it, and all users' logins are deleted."
        }
        action="Delete"
        danger
        onConfirm={() => deleting && remove.mutate(deleting)}
      />
    </>
  );
}
