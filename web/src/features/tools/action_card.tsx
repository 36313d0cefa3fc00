import type { Action } from "@/chat/types";
import { ApprovalCard, isApproval } from "@/features/tools/approval_card";
import { DynamicCard } from "@/features/tools/dynamic_card";

/** The card for an open action: an approval, or the results of client-executed tools. */
export function ActionCard({ action, clockSkew }: { action: Action; clockSkew: number }) {
  // The key resets the form for the next action, which may arrive in the same render.
  const key = action.tool_calls.map((call) => call.tool_call_id).join(" ");
  if (isApproval(action)) return <ApprovalCard key={key} action={action} />;
  return <DynamicCard key={key} action={action} clockSkew={clockSkew} />;
}
