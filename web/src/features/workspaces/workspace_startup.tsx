/** The startup script of a workspace: its log while it runs, and what to do if it failed. */
import { useMutation } from "@tanstack/react-query";
import { sentence } from "@/api/errors";
import { restartWorkspace, type WorkspaceRow } from "@/api/workspaces";
import { isStartingUp, startupProblem } from "@/chat/workspace_health";
import { OperationLog } from "@/features/tools/workspace_card";
import { queryClient } from "@/state/queries";
import { Commands } from "@/ui/backtick_code";
import { Button } from "@/ui/button";
import { Notice } from "@/ui/notice";
import { Spinner } from "@/ui/spinner";
import { toast } from "@/ui/toast";

const ADVICE =
  "The workspace can be used all the same. Check the address or the packages that it was created with; addresses in " +
  "private networks need `net_allow_private` on the server. Then try again, or create another workspace.";

/** The log or the failure of a start. Renders nothing if the startup script has succeeded or the workspace does not run. */
export function WorkspaceStartup({ workspace, className }: { workspace: WorkspaceRow; className?: string }) {
  const again = useMutation({
    mutationFn: () => restartWorkspace(workspace.id),
    onError: (error) => toast(sentence(error), { kind: "error" }),
    onSettled: () => queryClient.invalidateQueries({ queryKey: ["workspaces"] }),
  });
  const problem = startupProblem(workspace);
  const log = workspace.operation?.id ?? workspace.startup_operation;
  if (again.isPending || isStartingUp(workspace)) {
    return (
      <div className={className}>
        <p role="status" className="mb-2 flex items-center gap-2 text-muted">
          <Spinner /> {workspace.name} is starting.
        </p>
        {log && <OperationLog key={log} id={log} runs view="live" />}
      </div>
    );
  }
  if (!problem) return null;
  return (
    <Notice kind="error" {...(className ? { className } : {})}>
      <div className="min-w-0 space-y-2">
        <p className="font-medium">
          {workspace.name}: {problem}
        </p>
        {log && <OperationLog key={log} id={log} runs={false} view="end" />}
        <p>
          <Commands text={ADVICE} />
        </p>
        <Button size="small" onClick={() => again.mutate()}>
          Try again
        </Button>
      </div>
    </Notice>
  );
}
