import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { sentence } from "@/api/errors";
import { del, patch } from "@/api/http";
import type { TemplatePatchBody } from "@/api/types.gen";
import { listTemplates, listWorkspaces, startWorkspace, stopWorkspace, type WorkspaceRow } from "@/api/workspaces";
import { isOpenNetwork, networkName, networkWords } from "@/chat/networks";
import { reasonOf, stateOf } from "@/chat/workspace_health";
import { Section } from "@/features/settings/form";
import { Table } from "@/features/settings/table";
import { queryClient } from "@/state/queries";
import { useFeature, useSelf } from "@/state/session";
import { whyNone } from "@/state/templates";
import { Button } from "@/ui/button";
import { Commands } from "@/ui/commands";
import { Confirm } from "@/ui/dialog";
import { Notice } from "@/ui/notice";
import { Switch } from "@/ui/switch";
import { Moment } from "@/ui/time";
import { toast } from "@/ui/toast";

const KEY = ["workspaces"];
const reload = () => queryClient.invalidateQueries({ queryKey: KEY });
const complain = (error: unknown) => toast(sentence(error), { kind: "error" });

/** The user's workspaces. New ones are created in chats. */
export function OwnWorkspaces() {
  const isThere = useFeature("workspaces");
  const { data, error } = useQuery({
    queryKey: KEY,
    queryFn: listWorkspaces,
    enabled: isThere,
    refetchInterval: 5_000,
  });
  const [deleting, setDeleting] = useState<WorkspaceRow | null>(null);
  const act = useMutation({
    mutationFn: (run: () => Promise<unknown>) => run(),
    onSettled: reload,
    onError: complain,
  });
  if (!isThere) return <Notice>This server has no workspaces.</Notice>;
  return (
    <Section text="Where your agents read, write and run things. You create new ones below the message box of a chat.">
      {error && <Notice kind="error">{sentence(error)}</Notice>}
      <Table
        label="Workspaces"
        rows={data?.items ?? []}
        keyOf={(one) => one.id}
        empty="No workspaces yet."
        columns={[
          {
            title: "Name",
            cell: (one) => (
              <>
                <span className="font-medium">{one.name}</span>
                {one.template && <span className="block text-small text-muted">From {one.template}</span>}
                {reasonOf(one) && (
                  <span className="block text-small [overflow-wrap:anywhere] text-danger">{reasonOf(one)}</span>
                )}
                {one.warning && <span className="block text-small text-warn">{one.warning}</span>}
                {one.network && isOpenNetwork(one.network) && (
                  <span className="block text-small text-warn">{networkWords(one.network)}</span>
                )}
              </>
            ),
          },
          { title: "State", cell: (one) => stateOf(one) },
          {
            title: "Network",
            cell: (one) => one.network && <span className="whitespace-nowrap">{networkName(one.network)}</span>,
          },
          { title: "Stops", cell: (one) => (one.stops_at ? <Moment at={one.stops_at} /> : "") },
          {
            title: "",
            right: true,
            cell: (one) => (
              <span className="inline-flex gap-1.5">
                {(one.status === "stopped" || one.status === "failed") && (
                  <Button size="small" onClick={() => act.mutate(() => startWorkspace(one.id))}>
                    Start
                  </Button>
                )}
                {one.status === "running" && (
                  <Button size="small" onClick={() => act.mutate(() => stopWorkspace(one.id))}>
                    Stop
                  </Button>
                )}
                <Button size="small" kind="danger" onClick={() => setDeleting(one)}>
                  Delete
                </Button>
              </span>
            ),
          },
        ]}
      />
      <Confirm
        open={deleting !== null}
        onOpenChange={() => setDeleting(null)}
        title={`Delete ${deleting?.name}?`}
        text="Its files are removed and cannot be restored. Chats keep their messages."
        action="Delete"
        danger
        onConfirm={() => deleting && act.mutate(() => del(`/workspaces/${deleting.id}`))}
      />
    </Section>
  );
}

/** Further hosts are collapsed. */
const SHOWN_HOSTS = 3;

/** The hosts that workspaces of a template can reach if its network is a list of hosts. */
function Hosts({ names }: { names: string[] }) {
  const all = names.join(", ");
  if (names.length <= SHOWN_HOSTS) return <span className="block text-small text-muted">Reaches {all}</span>;
  return (
    <details className="text-small text-muted">
      <summary>Reaches {names.length} hosts</summary>
      <p>{all}</p>
    </details>
  );
}

/** The list of templates. New templates are pushed with `rookery admin`. */
export function Templates() {
  const isAdmin = useSelf().role === "admin";
  const isThere = useFeature("workspaces");
  const { data } = useQuery({
    queryKey: ["templates"],
    queryFn: listTemplates,
    enabled: isThere,
  });
  const change = (name: string, body: TemplatePatchBody) =>
    void patch(`/templates/${encodeURIComponent(name)}`, body)
      .catch(complain)
      .finally(() => queryClient.invalidateQueries({ queryKey: ["templates"] }));
  if (!isThere) return null;
  const none = whyNone(data?.items);
  return (
    <Section title="Templates" text="The templates of workspaces, and the networks that they may reach on this server.">
      {none && (
        <Notice kind="warn">
          <Commands text={none} />
        </Notice>
      )}
      <Table
        label="Templates"
        rows={data?.items ?? []}
        keyOf={(one) => one.name}
        empty="No templates."
        columns={[
          {
            title: "Template",
            cell: (one) => (
              <>
                <span className="font-medium">{one.display_name || one.name}</span>
                <span className="block text-small text-muted">
                  <Commands text={one.description} />
                </span>
                {one.granted_network === "hosts" && one.hosts.length > 0 && <Hosts names={one.hosts} />}
                {!none && one.unavailable && (
                  <span className="block text-small break-words text-warn">
                    <Commands text={one.unavailable} />
                  </span>
                )}
              </>
            ),
          },
          { title: "Driver", cell: (one) => one.driver },
          {
            title: "Network",
            cell: (one) => (
              <>
                <span className="whitespace-nowrap">{networkName(one.granted_network)}</span>
                {one.granted_network !== one.network && (
                  <span className="block text-small text-muted">
                    It asks for more ({networkName(one.network)}) than this server allows.
                  </span>
                )}
                {isOpenNetwork(one.granted_network) && (
                  <span className="block text-small text-warn">{networkWords(one.granted_network)}</span>
                )}
              </>
            ),
          },
          {
            title: "Use",
            cell: (one) =>
              isAdmin ? (
                <Switch label="Enabled" checked={one.enabled} onChange={(enabled) => change(one.name, { enabled })} />
              ) : null,
          },
          {
            title: "By agents",
            cell: (one) =>
              isAdmin ? (
                <Switch
                  label="Allowed"
                  checked={one.agents_allowed}
                  onChange={(allowed) => change(one.name, { agents_allowed: allowed })}
                />
              ) : null,
          },
        ]}
      />
    </Section>
  );
}
