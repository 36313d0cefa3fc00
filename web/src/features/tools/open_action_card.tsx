import type { Action } from "@/chat/types";
import { ApprovalCard, isApproval } from "@/features/tools/approval_card";
import { isWorkspaceQuestion, WorkspaceQuestion } from "@/features/tools/workspace_question";
import { DynamicCard } from "./client_tool_card";

/** The card for an open action: an approval, or the results of client-executed tools. */
export function ActionCard({ action, clockSkew }: { action: Action; clockSkew: number }) {
  // The key resets the form for the next action, which may arrive in the same render and be about the same calls.
  const key = action.tool_calls.map((call) => call.tool_call_id + JSON.stringify(call.elicitation ?? "")).join(" ");
  const card = <ApprovalCard key={key} action={action} />;
  if (isApproval(action) && isWorkspaceQuestion(action))
    return (
      <WorkspaceQuestion key={key} action={action}>
        {card}
      </WorkspaceQuestion>
    );
  if (isApproval(action)) return card;
  return <DynamicCard key={key} action={action} clockSkew={clockSkew} />;
}
