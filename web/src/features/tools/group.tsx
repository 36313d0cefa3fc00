import { ChevronRight, Layers, TriangleAlert } from "lucide-react";
import { memo } from "react";
import { useStore } from "zustand";
import { liveCall, withLive } from "@/chat/preview";
import type { GroupItem } from "@/chat/rows";
import { duration, groupTook, labelOf, stateOf, summaryOf } from "@/chat/tools";
import { useConversation } from "@/features/conversation/context";
import { ReasoningRow } from "@/features/timeline/reasoning";
import { ToolCard } from "@/features/tools/card";
import { useGroupOpen } from "@/state/open_state";
import { cx } from "@/ui/cx";
import { Spinner } from "@/ui/spinner";

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
  const states = calls.map((call) => stateOf(call, active));
  const current = calls.findLast(
    (_, at) => states[at] === "running" || states[at] === "streaming" || states[at] === "preparing",
  );
  const failed = states.filter((state) => state === "failed").length;
  const stopped = states.filter((state) => state === "stopped" || state === "lost").length;
  const ms = groupTook(calls);
  const tail = current?.output ? current.output.trimEnd().split("\n").slice(-5).join("\n") : "";
  return (
    <div className="rounded-lg border border-line bg-bg1" data-testid="tool-group">
      <button
        type="button"
        aria-expanded={open}
        onClick={() => setOpen(!open)}
        className="flex min-h-9 w-full items-center gap-2 rounded-lg px-3 py-1.5 text-left hover:bg-bg2"
      >
        <Layers aria-hidden className="size-4 shrink-0 text-muted" />
        <span className="min-w-0 flex-1 truncate">
          {current ? labelOf(current, stateOf(current, active)) : summaryOf(calls)}
          {current && <span className="text-muted"> ({calls.length} calls)</span>}
        </span>
        {failed > 0 && (
          <span className="flex shrink-0 items-center gap-1 text-small text-danger">
            <TriangleAlert aria-hidden className="size-3.5" />
            {failed} failed
          </span>
        )}
        {stopped > 0 && <span className="shrink-0 text-small text-muted">{stopped} stopped</span>}
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
      {!open && tail && (
        <pre className="overflow-hidden border-t border-line px-3 py-2 font-mono text-small text-muted whitespace-pre">
          {tail}
        </pre>
      )}
      {open && (
        <div className="space-y-1.5 border-t border-line p-2">
          {items.map((item) =>
            item.kind === "tool" ? (
              <ToolCard key={item.call.id} call={item.call} active={active} latest={false} />
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
