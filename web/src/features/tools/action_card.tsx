import type { Action } from "@/chat/types";
import { ApprovalCard, isApproval } from "@/features/tools/approval_card";
import { DynamicCard } from "@/features/tools/dynamic_card";

/** What the agent waits for: a decision, or something that another program has to do. */
export function ActionCard({ action, clockSkew }: { action: Action; clockSkew: number }) {
  // The next one may come in the same render, and must not be answered with what was typed for this one.
  const key = action.tool_calls.map((call) => call.tool_call_id).join(" ");
  if (isApproval(action)) return <ApprovalCard key={key} action={action} />;
  return <DynamicCard key={key} action={action} clockSkew={clockSkew} />;
}
