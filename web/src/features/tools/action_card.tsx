import type { Action } from "@/chat/types";
import { ApprovalCard, isApproval } from "@/features/tools/approval_card";
import { DynamicCard } from "@/features/tools/dynamic_card";

/** What the agent waits for: a decision, or something that another program has to do. */
export function ActionCard({ action, clockSkew }: { action: Action; clockSkew: number }) {
  return isApproval(action) ? <ApprovalCard action={action} /> : <DynamicCard action={action} clockSkew={clockSkew} />;
}
