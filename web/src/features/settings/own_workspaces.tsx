import { useMutation, useQuery } from "@tanstack/react-query";
import { Plus } from "lucide-react";
import { useState } from "react";
import { ApiError, sentence } from "@/api/errors";
import { del, patch } from "@/api/http";
import { newId } from "@/api/id";
import type { TemplatePatchBody, TemplateView } from "@/api/types.gen";
import {
  createWorkspace,
  listTemplates,
  listWorkspaces,
  type NewWorkspace,
  renameWorkspace,
  startWorkspace,
  stopWorkspace,
  type WorkspaceRow,
} from "@/api/workspaces";
import { describe, reasonOf, startupProblem, stateOf } from "@/chat/workspace_health";
import { isOpenNetwork, networkName, networkWords } from "@/chat/workspace_networks";
import { NewWorkspaceDialog } from "@/features/workspaces/workspace_form";
import { WorkspaceStartup } from "@/features/workspaces/workspace_startup";
import { useFeature, useSelf } from "@/state/login_session";
import { queryClient } from "@/state/queries";
import { useTemplates, whyNone } from "@/state/templates";
import { Commands } from "@/ui/backtick_code";
import { Button } from "@/ui/button";
import { Confirm, Dialog } from "@/ui/dialog";
import { TextField } from "@/ui/field";
import { Menu } from "@/ui/menu";
import { Notice } from "@/ui/notice";
import { Moment } from "@/ui/relative_time";
import { Switch } from "@/ui/switch";
import { toast } from "@/ui/toast";
import { Table } from "./responsive_table";
import { Section } from "./settings_form";

const KEY = ["workspaces"];
const reload = () => queryClient.invalidateQueries({ queryKey: KEY });
const complain = (error: unknown) => toast(sentence(error), { kind: "error" });

/** The user's workspaces, with a form for new ones. */
export function OwnWorkspaces() {
  const isThere = useFeature("workspaces");
  const { data, error } = useQuery({
    queryKey: KEY,
    queryFn: listWorkspaces,
    enabled: isThere,
    refetchInterval: 5_000,
  });
  const templates = useTemplates({ enabled: isThere });
  const [deleting, setDeleting] = useState<WorkspaceRow | null>(null);
  const [renaming, setRenaming] = useState<WorkspaceRow | null>(null);
  const [asking, setAsking] = useState<TemplateView | null>(null);
  const act = useMutation({
    mutationFn: (run: () => Promise<unknown>) => run(),
    onSettled: reload,
    onError: complain,
  });
  if (!isThere) return <Notice>This server has no workspaces.</Notice>;
  const problem = whyNone(templates.data?.items);
  const offered = (templates.data?.items ?? []).filter((one) => one.enabled && !one.unavailable);
  const create = async (template: string, body?: NewWorkspace) => {
    const made = await createWorkspace(template, newId(), body);
    void reload();
    return made;
  };
  return (
    <Section text="Where your agents read, write and run things. Agents also create workspaces when a task needs one.">
      {problem && (
        <Notice kind="warn">
          <Commands text={problem} />
        </Notice>
      )}
      {offered.length > 0 && (
        <div>
          <Menu
            label="Templates"
            trigger={
              <Button>
                <Plus aria-hidden className="size-4" /> New workspace
              </Button>
            }
            items={offered.map((one) => ({
              label: one.display_name || one.name,
              onSelect: () => (one.parameters.length > 0 ? setAsking(one) : act.mutate(() => create(one.name))),
            }))}
          />
        </div>
      )}
      {asking && (
        <NewWorkspaceDialog
          template={asking}
          onClose={() => setAsking(null)}
          onCreate={(body) => create(asking.name, body)}
        />
      )}
      {renaming && <RenameDialog workspace={renaming} onClose={() => setRenaming(null)} />}
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
                <span className="font-medium whitespace-nowrap">{one.name}</span>
                {one.template && <span className="block text-small text-muted">From {one.template}</span>}
                {reasonOf(one) && (
                  <span className="block text-small [overflow-wrap:anywhere] text-danger">
                    <Commands text={describe(one)} />
                  </span>
                )}
                <WorkspaceStartup workspace={one} className="mt-1 max-w-lg text-small" />
                {one.warning && <span className="block text-small text-warn">{one.warning}</span>}
                {one.network && isOpenNetwork(one.network) && (
                  <span className="block text-small text-warn">{networkWords(one.network)}</span>
                )}
              </>
            ),
          },
          { title: "State", cell: (one) => (startupProblem(one) ? "running, startup failed" : stateOf(one)) },
          {
            title: "Network",
            cell: (one) => one.network && <span className="whitespace-nowrap">{networkName(one.network)}</span>,
          },
          {
            title: "Stops",
            cell: (one) =>
              one.stops_at && (
                <>
                  <Moment at={one.stops_at} />
                  <span className="block text-small text-muted">if it is not used</span>
                </>
              ),
          },
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
                <Button size="small" aria-label={`Rename ${one.name}`} onClick={() => setRenaming(one)}>
                  Rename
                </Button>
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

function RenameDialog({ workspace, onClose }: { workspace: WorkspaceRow; onClose: () => void }) {
  const [name, setName] = useState(workspace.name);
  const rename = useMutation({
    mutationFn: () => renameWorkspace(workspace.id, name.trim()),
    onSuccess: () => {
      void reload();
      onClose();
    },
  });
  const refused = rename.error instanceof ApiError ? rename.error : null;
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title={`Rename ${workspace.name}`}
      footer={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" disabled={rename.isPending || !name.trim()} onClick={() => rename.mutate()}>
            Rename
          </Button>
        </>
      }
    >
      <TextField
        label="Name"
        autoComplete="off"
        autoCapitalize="none"
        spellCheck={false}
        value={name}
        onChange={(event) => setName(event.target.value)}
        hint="Lowercase letters, digits and hyphens, at most 32 characters."
        error={refused?.field("name") ?? (rename.error ? sentence(rename.error) : undefined)}
      />
    </Dialog>
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
                <span className="font-medium">{one.display_name || one.name}</span>{" "}
                <span className="text-small text-muted">Driver: {one.driver}</span>
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
                <span className="block whitespace-nowrap">
                  <Switch label="Enabled" checked={one.enabled} onChange={(enabled) => change(one.name, { enabled })} />
                  <Switch
                    label="Agents may use it"
                    checked={one.agents_allowed}
                    onChange={(allowed) => change(one.name, { agents_allowed: allowed })}
                  />
                </span>
              ) : null,
          },
        ]}
      />
    </Section>
  );
}
