import { useQuery } from "@tanstack/react-query";
import { Box, ChevronDown, CirclePause, CirclePlay, CircleX, Plus, TriangleAlert } from "lucide-react";
import { memo, Suspense, useEffect, useRef, useState } from "react";
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
import { describe, isStartingUp, reasonOf, startupProblem, stateOf } from "@/chat/workspace_health";
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

const WorkspaceStartup = lazyPart(
  async () => (await import("@/features/workspaces/workspace_startup")).WorkspaceStartup,
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
  script_failed: TriangleAlert,
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
  const current = list.data?.items.find((one) => one.id === workspaceId) ?? null;
  const failure = current && startupProblem(current) ? `${current.name}: ${startupProblem(current)}` : "";
  const wasStarting = useRef(false);
  const startsUp = current !== null && isStartingUp(current);
  // A failure of a start that was seen from here is told at once. Earlier ones have the warning mark only.
  useEffect(() => {
    if (failure && wasStarting.current && !asking) toast(failure, { kind: "error" });
    wasStarting.current = startsUp;
  }, [failure, startsUp, asking]);
  if (list.isError || !list.data) return null;
  const problemAtStart = current && startupProblem(current);
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
      detail: startupProblem(one) ? "startup script failed" : stateOf(one),
      icon: <StateIcon status={startupProblem(one) ? "script_failed" : stateOf(one)} />,
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
    const made = await createWorkspace(template, newId(), body);
    void queryClient.invalidateQueries({ queryKey: ["workspaces"] });
    onChoose(made.workspace.id);
    return made;
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
            className="max-w-44 @[36rem]:shrink! @[36rem]:min-w-11 text-muted!"
          >
            <Box aria-hidden className="size-3.5 shrink-0" />
            <span className="hidden min-w-0 truncate @[36rem]:block">{current ? current.name : "Workspace"}</span>
            {current && (reasonOf(current) ?? problemAtStart ?? current.warning) && (
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
        {current && (problemAtStart !== null || isStartingUp(current)) && (
          <Suspense fallback={null}>
            <WorkspaceStartup workspace={current} className="max-h-72 overflow-y-auto p-3 text-small" />
          </Suspense>
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
  return isStartingUp(one) || !["running", "stopped", "failed", "deleted"].includes(one.status);
}
