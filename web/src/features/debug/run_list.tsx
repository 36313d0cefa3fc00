import { Ellipsis } from "lucide-react";
import { type Ref, useMemo, useState } from "react";
import { deleteRecords, exportRecords, type Recording, type Run, type RunKind } from "@/api/debug";
import { sentence } from "@/api/errors";
import type { ChatView } from "@/api/types.gen";
import { KIND_NAMES, kindName, type NestedRun, nestedRuns, precise, runLabel, tookMs } from "@/chat/debug_texts";
import { RecordList, type RecordListHandle } from "@/features/debug/record_list";
import { RecordingBar, setMode } from "@/features/debug/recording";
import { Empty, Waiting } from "@/features/panel/workspace_state";
import { debugKeys, type RunFilter } from "@/state/debug_records";
import { queryClient } from "@/state/queries";
import { useNow } from "@/state/session_hooks";
import { Button, IconButton } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { Menu } from "@/ui/menu";
import { dollars } from "@/ui/money";
import { Ago } from "@/ui/relative_time";
import { toast } from "@/ui/toast";
import { Figures, StatusMark, tokenWords } from "./record_labels";

const ROW_PX = 60;

const FILTERS: { value: RunFilter; label: string }[] = [
  { value: "all", label: "All runs" },
  { value: "error", label: "Failed" },
  ...(Object.keys(KIND_NAMES) as RunKind[]).map((kind) => ({ value: kind, label: KIND_NAMES[kind] })),
];

interface Props {
  chat: ChatView;
  runs: readonly Run[] | undefined;
  recording: Recording | undefined;
  error: unknown;
  filter: RunFilter;
  onFilter: (filter: RunFilter) => void;
  onOpen: (run: string) => void;
  /** Loads older runs; null if there are none. */
  onMore: (() => void) | null;
  isLoadingMore: boolean;
  onRetry: () => void;
  handle?: Ref<RecordListHandle>;
}

/** The runs of a chat, newest first. */
export function RunList(props: Props) {
  const { chat, runs, recording, error, filter, onFilter, onRetry } = props;
  const hasRuns = (runs?.length ?? 0) > 0;
  return (
    <>
      {recording && <RecordingBar chat={chat} recording={recording} />}
      <div className="flex items-center gap-2 border-b border-line px-3 py-1.5">
        <select
          aria-label="Which runs"
          value={filter}
          onChange={(event) => onFilter(event.target.value as RunFilter)}
          className="h-7 rounded-md border border-line bg-bg1 px-1.5 font-medium pointer-coarse:h-11 pointer-coarse:text-[16px]"
        >
          {FILTERS.map((one) => (
            <option key={one.value} value={one.value}>
              {one.label}
            </option>
          ))}
        </select>
        <span className="flex-1" />
        {hasRuns && <ListMenu chat={chat} />}
      </div>
      {error && !runs ? (
        <Empty text={sentence(error)}>
          <Button onClick={onRetry}>Try again</Button>
        </Empty>
      ) : !runs ? (
        <Waiting text="Loading the runs" />
      ) : hasRuns ? (
        <Runs {...props} runs={runs} />
      ) : (
        <NoRuns chat={chat} recording={recording} filter={filter} />
      )}
    </>
  );
}

function Runs({ runs, onOpen, onMore, isLoadingMore, handle }: Props & { runs: readonly Run[] }) {
  const nested = useMemo(() => nestedRuns(runs), [runs]);
  return (
    <>
      <RecordList
        label="Runs"
        items={nested}
        keyOf={(item) => item.run.id}
        rowPx={ROW_PX}
        current={null}
        onOpen={(item) => onOpen(item.run.id)}
        render={(item) => <RunRow item={item} />}
        {...(handle ? { handle } : {})}
      />
      {onMore && (
        <p className="border-t border-line p-2 text-center">
          <Button size="small" disabled={isLoadingMore} onClick={onMore}>
            {isLoadingMore ? "Loading" : "Show older runs"}
          </Button>
        </p>
      )}
    </>
  );
}

/** Return the figures of a run: kind, model, steps, time, cost, retries and tokens. */
export function runFigures(run: Run, now: number): (string | null)[] {
  const { summary } = run;
  const steps = summary.step_count ?? 0;
  const ms = tookMs(run, now);
  const retries = summary.retry_count ?? 0;
  return [
    kindName(run.kind),
    run.model,
    steps === 0 ? null : steps === 1 ? "1 step" : `${steps} steps`,
    ms === null ? null : precise(ms),
    summary.cost_micros == null ? null : dollars(summary.cost_micros),
    retries === 0 ? null : retries === 1 ? "1 retry" : `${retries} retries`,
    tokenWords({
      input_tokens: summary.total_input_tokens ?? 0,
      output_tokens: summary.total_output_tokens ?? 0,
      cache_read_tokens: summary.total_cache_read_tokens ?? 0,
      cache_creation_tokens: summary.total_cache_creation_tokens ?? 0,
    }),
  ];
}

function RunRow({ item: { run, depth } }: { item: NestedRun }) {
  const now = useNow(1_000, run.status === "in_progress");
  return (
    <div className="flex h-full flex-col justify-center gap-0.5" style={depth ? { paddingLeft: 24 } : undefined}>
      <div className="flex items-center gap-2">
        <StatusMark status={run.status} />
        <span className="min-w-0 flex-1 truncate font-medium">{runLabel(run)}</span>
        <Ago at={run.started_at} className="text-small text-muted" />
      </div>
      <Figures items={runFigures(run, now)} className="truncate pl-6" />
    </div>
  );
}

/** Save an export as a file. */
export async function saveExport(chat: string, run: string | null): Promise<void> {
  try {
    const { file, name } = await exportRecords(chat, run);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(file);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  } catch (error) {
    toast(sentence(error), { kind: "error" });
  }
}

function ListMenu({ chat }: { chat: ChatView }) {
  const [isAsking, setAsking] = useState(false);
  const remove = () =>
    deleteRecords(chat.id)
      .then(() => queryClient.resetQueries({ queryKey: debugKeys.chat(chat.id) }))
      .catch((error: unknown) => toast(sentence(error), { kind: "error" }));
  return (
    <>
      <Menu
        label="Debug records"
        align="end"
        trigger={
          <IconButton label="Export or delete records">
            <Ellipsis />
          </IconButton>
        }
        items={[
          { label: "Export the newest 100 runs", onSelect: () => void saveExport(chat.id, null) },
          chat.my_role === "owner" && { label: "Delete all records", danger: true, onSelect: () => setAsking(true) },
        ]}
      />
      <Confirm
        open={isAsking}
        onOpenChange={setAsking}
        title="Delete all debug records of this chat?"
        text="The conversation stays. The records cannot be restored."
        action="Delete"
        danger
        onConfirm={() => void remove()}
      />
    </>
  );
}

interface NoRunsProps {
  chat: ChatView;
  recording: Recording | undefined;
  filter: RunFilter;
}

function NoRuns({ chat, recording, filter }: NoRunsProps) {
  if (filter !== "all") return <Empty text="No run of this kind is recorded." />;
  if (recording?.is_on) return <Empty text="Nothing is recorded yet. The next message is." />;
  const maySwitch = recording?.is_allowed && chat.my_role === "owner" && chat.parent_chat_id === null;
  return (
    <Empty text="Recording is off. Records show what the model was sent and what it returned.">
      {maySwitch && (
        <Button
          onClick={() =>
            void setMode(chat.id, "on").catch((error: unknown) => toast(sentence(error), { kind: "error" }))
          }
        >
          Record this chat
        </Button>
      )}
    </Empty>
  );
}
