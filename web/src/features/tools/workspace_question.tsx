/** The question of an agent that wants to create a workspace: the template's form instead of raw input. */
import { Box } from "lucide-react";
import type { ReactNode } from "react";
import { sentence } from "@/api/errors";
import { post } from "@/api/http";
import type { Action } from "@/api/types.gen";
import type { NewWorkspace } from "@/api/workspaces";
import { fields, text } from "@/chat/tool_texts";
import { useConversation } from "@/features/conversation/chat_context";
import { WorkspaceForm } from "@/features/workspaces/workspace_form";
import { queryClient } from "@/state/queries";
import { useTemplates } from "@/state/templates";
import { Button } from "@/ui/button";
import { toast } from "@/ui/toast";

/** Return whether the form can answer the action: it is about one workspace. */
export function isWorkspaceQuestion(action: Action): boolean {
  const [call, ...others] = action.tool_calls;
  return others.length === 0 && call?.tool_name === "create_workspace" && !call.brake;
}

/** Renders `children` if there is no form: for other viewers, and for templates without parameters. */
export function WorkspaceQuestion({ action, children }: { action: Action; children: ReactNode }) {
  const { chatId, isOwner } = useConversation();
  const templates = useTemplates();
  const call = action.tool_calls[0];
  const args = fields(call?.args);
  const template = templates.data?.items.find((one) => one.name === text(args.template_id));
  if (templates.isLoading) return null;
  if (!call || !isOwner || !template || template.parameters.length === 0) return children;
  const answer = (more: { decision: "approve" | "deny"; parameters?: NewWorkspace["parameters"] }) =>
    post(`/chats/${chatId}/approvals`, { answers: [{ tool_call_id: call.tool_call_id, ...more }] });
  return (
    <section aria-label="Approval" className="rounded-lg border border-warn bg-bg1 p-4" data-testid="approval">
      <p className="flex items-center gap-2 font-medium">
        <Box aria-hidden className="size-4 shrink-0 text-warn" />
        The agent needs a workspace: {template.display_name || template.name}
      </p>
      <p className="mt-1 mb-3 text-muted">Fill in what is missing. The agent goes on when the workspace is ready.</p>
      <WorkspaceForm
        template={template}
        given={fields(args.parameters)}
        action="Create workspace"
        named={false}
        onSubmit={async ({ parameters }) => {
          await answer({ decision: "approve", ...(parameters ? { parameters } : {}) });
          void queryClient.invalidateQueries({ queryKey: ["workspaces"] });
        }}
        buttons={
          <Button
            onClick={() =>
              answer({ decision: "deny" }).catch((error: unknown) => toast(sentence(error), { kind: "error" }))
            }
          >
            Deny
          </Button>
        }
      />
    </section>
  );
}
