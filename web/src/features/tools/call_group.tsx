import { ChevronRight, Layers, TriangleAlert } from "lucide-react";
import { memo, useRef } from "react";
import { flushSync } from "react-dom";
import { useStore } from "zustand";
import { liveCall, withLive } from "@/chat/preview";
import type { GroupItem } from "@/chat/timeline_rows";
import {
  badExitOf,
  denialOf,
  duration,
  failureOf,
  firstProblem,
  groupTook,
  labelOf,
  stateOf,
  summaryOf,
  type ToolState,
} from "@/chat/tool_texts";
import { useConversation } from "@/features/conversation/chat_context";
import { ReasoningRow } from "@/features/timeline/reasoning";
import { setOpen as setCallOpen, useGroupOpen } from "@/state/opened_cards";
import { cx } from "@/ui/cx";
import { Spinner } from "@/ui/spinner";
import { ToolCard } from "./tool_card";

interface Props {
  items: GroupItem[];
  active: boolean;
}

/** Several calls in one line: a summary, errors and the duration. */
export const ToolGroup = memo(function ToolGroup({ items, active }: Props) {
  const [open, setOpen] = useGroupOpen(items.map((item) => (item.kind === "tool" ? item.call.id : item.liveId)));
  const { session } = useConversation();
  const stored = items.flatMap((item) => (item.kind === "tool" ? [item.call] : []));
  const waits = active && stored.some((call) => !call.hasResult);
  const preview = useStore(session.store, (one) => (waits ? one.data.preview : null));
  const calls = stored.map((call) => withLive(call, liveCall(preview, call.id)));
  const asked = useStore(session.store, (one) => (waits ? one.data.action : null));
  const states = calls.map((call): ToolState => {
    const isAsked = !call.hasResult && asked?.tool_calls.some((each) => each.tool_call_id === call.id);
    return isAsked ? "needs_you" : stateOf(call, active);
  });
  const current = calls.findLast(
    (_, at) => states[at] === "running" || states[at] === "streaming" || states[at] === "preparing",
  );
  const failed = states.filter((state) => state === "failed").length;
  const stopped = states.filter((state) => state === "stopped" || state === "lost").length;
  const denied = calls.flatMap((call, at) => (states[at] === "denied" ? (denialOf(call)?.by ?? []) : []));
  const held = states.filter((state) => state === "needs_you").length;
  const ran = calls.filter((_, at) => states[at] !== "denied" && states[at] !== "needs_you");
  const badExits = calls.filter((call, at) => states[at] === "done" && badExitOf(call)).map(badExitOf);
  const problem = firstProblem(calls, states);
  const list = useRef<HTMLDivElement>(null);
  const toggle = () => {
    if (open || !problem) return setOpen(!open);
    flushSync(() => {
      setOpen(true);
      setCallOpen(problem.id, true);
    });
    list.current?.querySelector(`[data-call="${CSS.escape(problem.id)}"]`)?.scrollIntoView({ block: "nearest" });
  };
  const ms = groupTook(calls);
  const tail = current?.output ? current.output.trimEnd().split("\n").slice(-5).join("\n") : "";
  return (
    <div className="rounded-lg border border-line bg-bg1" data-testid="tool-group">
      <button
        type="button"
        aria-expanded={open}
        onClick={toggle}
        className="flex min-h-9 w-full items-center gap-2 rounded-lg px-3 py-1.5 text-left hover:bg-bg2"
      >
        <Layers aria-hidden className="size-4 shrink-0 text-muted" />
        <span className="min-w-0 flex-1 truncate">
          {current ? labelOf(current, stateOf(current, active)) : summaryOf(ran) || `${calls.length} actions`}
          {current && <span className="text-muted"> ({calls.length} calls)</span>}
        </span>
        {failed > 0 && (
          <span className="flex shrink-0 items-center gap-1 text-small text-danger">
            <TriangleAlert aria-hidden className="size-3.5" />
            {failed} failed
          </span>
        )}
        {badExits.length > 0 && (
          <span className="shrink-0 text-small text-warn">
            {badExits.length === 1 ? `exit ${badExits[0]}` : `${badExits.length} nonzero exits`}
          </span>
        )}
        {stopped > 0 && <span className="shrink-0 text-small text-muted">{stopped} stopped</span>}
        {denied.length > 0 && (
          <span className="shrink-0 text-small text-muted">
            {denied.length} {new Set(denied).size === 1 ? denied[0]?.replace("D", "d") : "denied"}
          </span>
        )}
        {held > 0 && <span className="shrink-0 text-small text-warn">Waiting for you</span>}
        {current ? (
          <Spinner />
        ) : (
          ms !== null &&
          ms >= 1000 && <span className="shrink-0 text-small text-muted tabular-nums">{duration(ms)}</span>
        )}
        <ChevronRight
          aria-hidden
          className={cx("size-4 shrink-0 text-muted transition-transform", open && "rotate-90")}
        />
      </button>
      {!open && problem && (
        <p
          className={cx(
            "truncate border-t border-line px-3 py-1.5 text-small",
            failed > 0 ? "text-danger" : "text-warn",
          )}
          data-testid="group-failure"
        >
          {failed > 0
            ? [labelOf(problem, "failed"), failureOf(problem)].filter(Boolean).join(": ")
            : `${labelOf(problem, "done")}: exit ${badExitOf(problem)}`}
        </p>
      )}
      {!open && tail && (
        <pre className="overflow-hidden border-t border-line px-3 py-2 font-mono text-small text-muted whitespace-pre">
          {tail}
        </pre>
      )}
      {open && (
        <div ref={list} className="space-y-1.5 border-t border-line p-2">
          {items.map((item) =>
            item.kind === "tool" ? (
              <div key={item.call.id} data-call={item.call.id}>
                <ToolCard call={item.call} active={active} latest={false} />
              </div>
            ) : (
              <ReasoningRow
                key={item.id}
                id={item.id}
                liveId={item.liveId}
                text={item.text}
                startedAt={item.startedAt}
                endedAt={item.endedAt}
                live={false}
              />
            ),
          )}
        </div>
      )}
    </div>
  );
});
