import { ChevronRight, CircleDashed, Hand, TriangleAlert } from "lucide-react";
import { memo, type ReactNode } from "react";
import { useStore } from "zustand";
import { keptFile } from "@/chat/paths";
import { liveCall, type ToolView, withLive } from "@/chat/preview";
import {
  closedBecause,
  diffCounts,
  duration,
  failureOf,
  fields,
  labelOf,
  list,
  number,
  stateOf,
  type ToolState,
  text,
  took,
} from "@/chat/tools";
import { useConversation } from "@/features/conversation/context";
import { toolOf } from "@/features/tools/registry";
import { useNow } from "@/state/hooks";
import { useOpen } from "@/state/open_state";
import { Button } from "@/ui/button";
import { cx } from "@/ui/cx";
import { pulsing } from "@/ui/motion";
import { Spinner } from "@/ui/spinner";

interface Props {
  call: ToolView;
  active: boolean;
  /** In the newest turn: forms may be answered. */
  latest: boolean;
}

/** One call: a line that says what happened, and what it opens to. */
export const ToolCard = memo(function ToolCard({ call: stored, active, latest }: Props) {
  const { session } = useConversation();
  const live = useStore(session.store, (one) =>
    active && !stored.hasResult ? liveCall(one.data.preview, stored.id) : null,
  );
  const call = withLive(stored, live);
  const tool = toolOf(call.name);
  const waitsForMe = useStore(session.store, (one) =>
    Boolean(active && one.data.action?.tool_calls.some((asked) => asked.tool_call_id === stored.id)),
  );
  const state = waitsForMe && !call.hasResult ? "needs_you" : stateOf(call, active);
  const runs = state === "preparing" || state === "running" || state === "streaming";
  const [open, setOpen] = useOpen(call.id, runs && Boolean(tool.opensWhileRunning));
  if (tool.Card) return <tool.Card call={call} state={state} active={active} latest={latest} />;
  const { Body, icon: Icon } = tool;
  return (
    <div className="rounded-lg border border-line bg-bg1" data-testid={`tool-${call.name}`} data-state={state}>
      <button
        type="button"
        aria-expanded={Body ? open : undefined}
        disabled={!Body}
        onClick={() => setOpen(!open)}
        className="flex min-h-9 w-full items-center gap-2 rounded-lg px-3 py-1.5 text-left hover:bg-bg2 disabled:cursor-default"
      >
        <Icon aria-hidden className="size-4 shrink-0 text-muted" />
        <span
          ref={state === "preparing" ? pulsing : null}
          className={cx("min-w-0 flex-1 truncate", state === "preparing" && "text-muted")}
        >
          {labelOf(call, state)}
        </span>
        <Figures call={call} state={state} />
        <Mark call={call} state={state} />
        {Body && (
          <ChevronRight
            aria-hidden
            className={cx("size-4 shrink-0 text-muted transition-transform", open && "rotate-90")}
          />
        )}
      </button>
      {open && Body && (
        <div className="border-t border-line p-3">
          {state === "failed" && failureOf(call) && <Failure call={call} />}
          <Body call={call} state={state} />
          <Whole call={call} />
        </div>
      )}
    </div>
  );
});

/** A result that was shortened for the agent is whole in the workspace. */
function Whole({ call }: { call: ToolView }) {
  const { openFile } = useConversation();
  const file = openFile ? keptFile(call.result) : null;
  if (!openFile || !file) return null;
  return (
    <Button size="small" className="mt-2" onClick={() => openFile(file)}>
      Open all of it
    </Button>
  );
}

/** The whole reason, which may be longer than the header has room for. */
function Failure({ call }: { call: ToolView }) {
  const result = fields(call.result);
  const said = text(result.message) || text(result.error) || text(call.result);
  return <p className="mb-2 text-small break-words whitespace-pre-wrap text-danger">{said}</p>;
}

/** Numbers at the right of the header: lines changed, exit code, time. */
function Figures({ call, state }: { call: ToolView; state: ToolState }) {
  const runs = state === "running" || state === "streaming";
  const now = useNow(1000, runs);
  const result = fields(call.result);
  const parts: ReactNode[] = [];
  if (call.name === "edit_files" || call.name === "write_file") {
    const diff = [text(result.diff), ...list(result.files).map((one) => text(one.diff))].join("\n");
    const { added, removed } = diffCounts(diff);
    if (added + removed > 0)
      parts.push(
        <span key="d">
          <span className="text-ok">+{added}</span> <span className="text-danger">-{removed}</span>
        </span>,
      );
  }
  const exit = number(result.exit_code);
  if (call.name === "execute" && exit !== null && exit > 0)
    parts.push(
      <span key="e" className="text-warn">
        exit {exit}
      </span>,
    );
  const ms = runs && call.startedAt ? now - Date.parse(call.startedAt) : took(call);
  if (ms !== null && ms >= 1000) parts.push(<span key="t">{duration(runs ? Math.floor(ms / 1000) * 1000 : ms)}</span>);
  if (parts.length === 0) return null;
  return <span className="flex shrink-0 gap-2 text-small text-muted tabular-nums">{parts}</span>;
}

/** The state by shape and word. */
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
          <span className="max-w-48 truncate">{failureOf(call) || "failed"}</span>
        </span>
      );
    case "stopped":
      return <span className="shrink-0 text-small text-muted">{closedBecause(call)}</span>;
    case "limit":
      return <span className="shrink-0 text-small text-warn">limit reached</span>;
    case "background":
      return <span className="shrink-0 text-small text-accent">still running</span>;
    case "needs_you":
      return <Hand aria-label="Needs you" className="size-4 shrink-0 text-warn" />;
    case "lost":
      return (
        <span className="flex shrink-0 items-center gap-1 text-small text-muted">
          <CircleDashed aria-hidden className="size-3.5" />
          No result recorded
        </span>
      );
    case "done":
      return null;
  }
}
