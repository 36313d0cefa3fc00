import { useQuery } from "@tanstack/react-query";
import { Box, ChevronDown, CirclePause, CirclePlay, CircleX, Plus, TriangleAlert } from "lucide-react";
import { memo, Suspense, useEffect, useState } from "react";
import { isStatus, sentence } from "@/api/errors";
import { newId } from "@/api/id";
import type { TemplateView } from "@/api/types.gen";
import {
  createWorkspace,
  listWorkspaces,
  type NewWorkspace,
  startWorkspace,
  stopWorkspace,
  type WorkspaceRow,
} from "@/api/workspaces";
import { describe, reasonOf, stateOf } from "@/chat/workspace_health";
import { useFeature } from "@/state/login_session";
import { queryClient } from "@/state/queries";
import { driverProblem, useTemplates } from "@/state/templates";
import { Commands } from "@/ui/backtick_code";
import { Button } from "@/ui/button";
import { Combobox, type Option } from "@/ui/combobox";
import { lazyPart } from "@/ui/lazy_part";
import { Popover } from "@/ui/popover";
import { Spinner } from "@/ui/spinner";
import { toast } from "@/ui/toast";

const NewWorkspaceDialog = lazyPart(
  async () => (await import("@/features/workspaces/workspace_form")).NewWorkspaceDialog,
);

interface Props {
  workspaceId: string | null;
  onChoose: (id: string | null) => void;
}

const ICONS: Record<string, typeof Box> = {
  running: CirclePlay,
  stopped: CirclePause,
  failed: CircleX,
  unreachable: CircleX,
};

/** An icon for the state: running, stopped, failed, or changing. */
function StateIcon({ status }: { status: string }) {
  const Icon = ICONS[status];
  return Icon ? <Icon aria-label={status} /> : <Spinner />;
}

/** The picker for the workspace of a chat: none, an existing one, or a new one from a template. */
export const WorkspacePicker = memo(function WorkspacePicker(props: Props) {
  // Servers without workspaces have no picker.
  return useFeature("workspaces") ? <Picker {...props} /> : null;
});

function Picker({ workspaceId, onChoose }: Props) {
  const [open, setOpen] = useState(false);
  const [asking, setAsking] = useState<TemplateView | null>(null);
  const list = useQuery({
    queryKey: ["workspaces"],
    queryFn: listWorkspaces,
    retry: false,
    refetchInterval: (query) => (query.state.data?.items.some((one) => isMoving(one)) ? 2_000 : false),
  });
  const templates = useTemplates({ enabled: open });
  // The message of the server names the command that solves the problem.
  const problem = driverProblem(templates.data?.items);
  const isUnknown =
    workspaceId !== null && list.data !== undefined && !list.data.items.some((one) => one.id === workspaceId);
  // The agent created this workspace after the list was loaded.
  useEffect(() => {
    if (isUnknown) void queryClient.invalidateQueries({ queryKey: ["workspaces"] });
  }, [isUnknown]);
  if (list.isError || !list.data) return null;
  const current = list.data.items.find((one) => one.id === workspaceId) ?? null;
  const options: Option[] = [
    {
      id: "none",
      label: "No workspace",
      detail: problem ? "" : "created when needed",
      selected: workspaceId === null,
    },
    ...list.data.items.map((one) => ({
      id: one.id,
      label: one.name,
      group: "Workspaces",
      detail: stateOf(one),
      icon: <StateIcon status={stateOf(one)} />,
      selected: one.id === workspaceId,
    })),
    ...(templates.data?.items ?? [])
      .filter((one) => !one.unavailable)
      .map((one) => ({
        id: `new:${one.name}`,
        label: `New: ${one.display_name || one.name}`,
        words: one.description,
        group: "From a template",
        icon: <Plus />,
      })),
  ];
  const fail = (error: unknown) => void toast(sentence(error), { kind: "error" });
  const pick = (id: string) => {
    setOpen(false);
    const template = templates.data?.items.find((one) => `new:${one.name}` === id);
    if (id === "none") onChoose(null);
    else if (!template) onChoose(id);
    else if (template.parameters.length > 0) setAsking(template);
    else create(template.name).catch(fail);
  };
  const create = async (template: string, body?: NewWorkspace) => {
    const { workspace } = await createWorkspace(template, newId(), body);
    setAsking(null);
    void queryClient.invalidateQueries({ queryKey: ["workspaces"] });
    onChoose(workspace.id);
  };
  const act = (change: Promise<unknown>) =>
    change
      .catch((error: unknown) => !isStatus(error, 409) && fail(error))
      .finally(() => void queryClient.invalidateQueries({ queryKey: ["workspaces"] }));
  return (
    <>
      {asking && (
        <Suspense fallback={null}>
          <NewWorkspaceDialog
            template={asking}
            onClose={() => setAsking(null)}
            onCreate={(body) => create(asking.name, body)}
          />
        </Suspense>
      )}
      <Popover
        label="Workspace"
        side="top"
        open={open}
        onOpenChange={setOpen}
        className="flex w-80 max-w-[calc(100vw-2rem)] flex-col p-0"
        trigger={
          <Button
            size="small"
            kind="ghost"
            aria-label={`Workspace: ${current ? `${current.name}, ${stateOf(current)}` : "none"}`}
            className="max-w-44 sm:shrink! sm:min-w-11 text-muted!"
          >
            <Box aria-hidden className="size-3.5 shrink-0" />
            <span className="hidden min-w-0 truncate sm:block">{current ? current.name : "Workspace"}</span>
            {current && (reasonOf(current) ?? current.warning) && (
              <TriangleAlert aria-label="Warning" className="size-3.5 text-warn" />
            )}
            <ChevronDown aria-hidden className="size-3.5 shrink-0" />
          </Button>
        }
      >
        <Combobox
          label="Choose a workspace"
          options={options}
          className="max-h-80"
          onPick={(option) => pick(option.id)}
        />
        {problem && (
          <p className="border-t border-line p-3 text-small break-words text-muted">
            <Commands text={problem} />
          </p>
        )}
        {current && (
          <div className="flex items-center gap-2 border-t border-line p-3 text-small">
            <span className="min-w-0 flex-1 break-words text-muted">
              {reasonOf(current) ? <Commands text={describe(current)} /> : (current.warning ?? describe(current))}
            </span>
            {current.status === "running" && (
              <Button size="small" onClick={() => void act(stopWorkspace(current.id))}>
                Stop
              </Button>
            )}
            {(current.status === "stopped" || current.status === "failed") && (
              <Button size="small" onClick={() => void act(startWorkspace(current.id))}>
                Start
              </Button>
            )}
          </div>
        )}
      </Popover>
    </>
  );
}

function isMoving(one: WorkspaceRow): boolean {
  return !["running", "stopped", "failed", "deleted"].includes(one.status);
}
