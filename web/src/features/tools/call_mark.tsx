import { CircleDashed, Hand, TriangleAlert } from "lucide-react";
import type { ToolView } from "@/chat/preview";
import { closedBecause, denialOf, failureOf, type ToolState } from "@/chat/tool_texts";
import { Spinner } from "@/ui/spinner";

/** The state of a call as an icon with a name. */
export function Mark({ call, state }: { call: ToolView; state: ToolState }) {
  switch (state) {
    case "preparing":
    case "running":
    case "streaming":
      return <Spinner />;
    case "failed":
      return (
        <span className="flex min-w-0 shrink items-center gap-1 text-small text-danger">
          <TriangleAlert aria-label="Failed" className="size-3.5 shrink-0" />
          {/* On a phone the message would leave no room for the label. The open card shows it. */}
          <span className="max-w-48 truncate max-sm:hidden">{failureOf(call) || "failed"}</span>
        </span>
      );
    case "stopped":
      return <span className="shrink-0 text-small text-muted">{closedBecause(call)}</span>;
    case "limit":
      return <span className="shrink-0 text-small text-warn">limit reached</span>;
    case "background":
      return <span className="shrink-0 text-small text-accent">still running</span>;
    case "needs_you":
      return (
        <span className="flex shrink-0 items-center gap-1 text-small text-warn">
          <Hand aria-hidden className="size-4 shrink-0" />
          Waiting for you
        </span>
      );
    case "denied": {
      const { by, why } = denialOf(call) ?? { by: "", why: "" };
      return (
        <span className="max-w-64 shrink-0 truncate text-small text-muted max-sm:max-w-32">
          {why ? `${by}: ${why}` : by}
        </span>
      );
    }
    case "lost":
      return (
        <span className="flex shrink-0 items-center gap-1 text-small text-muted">
          <CircleDashed aria-label="No result recorded" className="size-3.5" />
          <span aria-hidden className="max-sm:hidden">
            No result recorded
          </span>
        </span>
      );
    case "done":
      return null;
  }
}
