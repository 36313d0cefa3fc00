import { ChevronRight } from "lucide-react";
import { memo, type ReactNode } from "react";
import { useStore } from "zustand";
import { keptFile } from "@/chat/file_paths";
import { liveCall, type ToolView, withLive } from "@/chat/preview";
import {
  denialOf,
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
} from "@/chat/tool_texts";
import { useConversation } from "@/features/conversation/chat_context";
import { toolOf } from "@/features/tools/registry";
import { useOpen } from "@/state/opened_cards";
import { useNow } from "@/state/session_hooks";
import { Button } from "@/ui/button";
import { cx } from "@/ui/cx";
import { pulsing } from "@/ui/endless_animations";
import { Mark } from "./call_mark";

interface Props {
  call: ToolView;
  active: boolean;
  /** Whether the call is in the newest turn, where forms can be answered. */
  latest: boolean;
}

/** The card of a tool call: a header line, and a body that can be opened. */
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
  const { Body, Label, icon: Icon } = tool;
  const hasBody = Body && (!tool.showsResult || (call.hasResult && !call.isError));
  const canOpen = hasBody || state === "denied" || (state === "failed" && failureOf(call) !== "");
  return (
    <div className="rounded-lg border border-line bg-bg1" data-testid={`tool-${call.name}`} data-state={state}>
      <button
        type="button"
        aria-expanded={canOpen ? open : undefined}
        disabled={!canOpen}
        onClick={() => setOpen(!open)}
        className="flex min-h-9 w-full items-center gap-2 rounded-lg px-3 py-1.5 text-left hover:bg-bg2 disabled:cursor-default"
      >
        <Icon aria-hidden className="size-4 shrink-0 text-muted" />
        <span
          ref={state === "preparing" ? pulsing : null}
          className={cx("min-w-0 flex-1 truncate", state === "preparing" && "text-muted")}
        >
          {Label ? <Label call={call} state={state} /> : labelOf(call, state)}
        </span>
        <Figures call={call} state={state} />
        <Mark call={call} state={state} />
        {canOpen && (
          <ChevronRight
            aria-hidden
            className={cx("size-4 shrink-0 text-muted transition-transform", open && "rotate-90")}
          />
        )}
      </button>
      {open && canOpen && (
        <div className="space-y-2 border-t border-line p-3">
          {state === "failed" && failureOf(call) && <Failure call={call} />}
          {state === "denied" && <Denial call={call} />}
          {hasBody && <Body call={call} state={state} />}
          <Whole call={call} />
        </div>
      )}
    </div>
  );
});

/** A link to the complete result in the workspace, if the result was truncated. */
function Whole({ call }: { call: ToolView }) {
  const { openFile } = useConversation();
  const file = openFile ? keptFile(call.result) : null;
  if (!openFile || !file) return null;
  return (
    <Button size="small" onClick={() => openFile(file)}>
      Open all of it
    </Button>
  );
}

/** Says who denied the call, with the reason that they wrote. */
function Denial({ call }: { call: ToolView }) {
  const { by, why } = denialOf(call) ?? { by: "", why: "" };
  return (
    <p className="text-small break-words whitespace-pre-wrap text-muted">
      {by}
      {why ? `: ${why}` : ". It did not run."}
    </p>
  );
}

/** The complete error message, which the header may truncate. */
function Failure({ call }: { call: ToolView }) {
  const result = fields(call.result);
  const said = text(result.message) || text(result.error) || text(call.result);
  return <p className="text-small break-words whitespace-pre-wrap text-danger">{said}</p>;
}

/** The figures in the header: changed lines, exit code, duration. */
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
