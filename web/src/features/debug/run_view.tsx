import { ArrowLeft, Columns2, Download, Link as LinkIcon, MessageSquareText, Search, X } from "lucide-react";
import { type Ref, useMemo } from "react";
import type { Place, Places, RunDetail, StepSummary } from "@/api/debug";
import { sentence } from "@/api/errors";
import { placeName, precise, retriesOf, runLabel, stepText, stepTiming, tookMs } from "@/chat/debug_texts";
import { RecordList, type RecordListHandle } from "@/features/debug/record_list";
import { runFigures, saveExport } from "@/features/debug/run_list";
import { TimingBar } from "@/features/debug/timing";
import { Empty } from "@/features/panel/workspace_state";
import { MIN_SEARCH_CHARS } from "@/state/debug_records";
import { useNow } from "@/state/session_hooks";
import { IconButton } from "@/ui/button";
import { copyText } from "@/ui/clipboard";
import { cx } from "@/ui/cx";
import { dollars } from "@/ui/money";
import { Figures, StatusMark, tokenWords } from "./record_labels";

const STEP_PX = 64;
const PLACE_PX = 56;
const MAX_SEARCH_CHARS = 200;

interface HeadProps {
  chat: string;
  run: RunDetail;
  onBack: () => void;
  onRun: (run: string) => void;
  /** Scrolls the conversation to the message that started the run; null if there is none. */
  onShowMessage: (() => void) | null;
  onCompare: () => void;
}

/** The head of a run: its label, its figures, and the runs it belongs to. */
export function RunHead({ chat, run, onBack, onRun, onShowMessage, onCompare }: HeadProps) {
  const now = useNow(1_000, run.status === "in_progress");
  const { continues } = run.summary;
  const address = `${location.origin}/c/${chat}?panel=debug:${run.id}`;
  return (
    <header className="border-b border-line px-3 pt-2 pb-2">
      <div className="flex items-center gap-1">
        <IconButton label="Back to the runs" onClick={onBack} className="-ml-2">
          <ArrowLeft />
        </IconButton>
        <StatusMark status={run.status} />
        <h2 className="min-w-0 flex-1 truncate pl-1 font-semibold" title={run.summary.first_message ?? undefined}>
          {runLabel(run)}
        </h2>
        {onShowMessage && (
          <IconButton label="Show in conversation" onClick={onShowMessage}>
            <MessageSquareText />
          </IconButton>
        )}
        <IconButton label="Compare with another run" onClick={onCompare}>
          <Columns2 />
        </IconButton>
        <IconButton label="Copy link to this run" onClick={() => void copyText(address, "The link was copied.")}>
          <LinkIcon />
        </IconButton>
        <IconButton label="Export this run" onClick={() => void saveExport(chat, run.id)}>
          <Download />
        </IconButton>
      </div>
      <Figures items={[...runFigures(run, now), run.provider, run.summary.endpoint_label]} />
      {(continues || run.parent_run_id) && (
        <p className="mt-1 flex flex-wrap gap-x-3 text-small">
          {continues && (
            <button type="button" className="text-accent underline" onClick={() => onRun(continues)}>
              Continues an earlier run of this turn
            </button>
          )}
          {run.parent_run_id && (
            <button type="button" className="text-accent underline" onClick={() => onRun(run.parent_run_id ?? "")}>
              Belongs to this turn
            </button>
          )}
        </p>
      )}
      {run.summary.truncated && (
        <p className="mt-1 text-small text-warn">
          This run is longer than a record may be. The last steps have no prompts and bodies.
        </p>
      )}
    </header>
  );
}

interface StepsProps {
  run: RunDetail;
  current: string | null;
  onOpen: (step: string) => void;
  query: string;
  onQuery: (query: string) => void;
  /** The places that the search found; undefined while it runs. */
  places: Places | undefined;
  error: unknown;
  handle?: Ref<RecordListHandle>;
}

/** The steps of a run, or the places that a search found in them. */
export function Steps({ run, current, onOpen, query, onQuery, places, error, handle }: StepsProps) {
  const isSearching = query.trim().length >= MIN_SEARCH_CHARS;
  const shared = handle ? { handle } : {};
  return (
    <>
      <search className="shows-focus flex items-center gap-1 border-b border-line py-1 pr-1 pl-3">
        <Search aria-hidden className="size-4 shrink-0 text-muted" />
        <input
          aria-label="Search in this run"
          placeholder="Search in this run"
          value={query}
          maxLength={MAX_SEARCH_CHARS}
          onChange={(event) => onQuery(event.target.value)}
          onKeyDown={(event) => {
            if (event.key !== "Escape" || query === "") return;
            event.stopPropagation();
            onQuery("");
          }}
          className="min-w-0 flex-1 bg-transparent px-2 py-1 outline-none placeholder:text-muted pointer-coarse:text-[16px]"
        />
        {query !== "" && (
          <IconButton label="Clear the search" size="small" onClick={() => onQuery("")}>
            <X />
          </IconButton>
        )}
      </search>
      {isSearching ? (
        <FoundPlaces places={places} error={error} current={current} onOpen={onOpen} {...shared} />
      ) : (
        <StepList run={run} current={current} onOpen={onOpen} {...shared} />
      )}
    </>
  );
}

function StepList({ run, current, onOpen, handle }: Pick<StepsProps, "run" | "current" | "onOpen" | "handle">) {
  const isRunning = run.status === "in_progress";
  const now = useNow(1_000, isRunning);
  const longest = useMemo(() => Math.max(1, ...run.steps.map((step) => tookMs(step, now) ?? 0)), [run.steps, now]);
  if (run.steps.length === 0) {
    return <Empty text={isRunning ? "The first step is being prepared." : "This run has no steps."} />;
  }
  return (
    <RecordList
      label="Steps"
      items={run.steps}
      keyOf={(step) => step.id}
      rowPx={STEP_PX}
      current={current}
      onOpen={(step) => onOpen(step.id)}
      render={(step) => <StepRow step={step} isRunOpen={isRunning} longest={longest} now={now} />}
      {...(handle ? { handle } : {})}
    />
  );
}

interface RowProps {
  step: StepSummary;
  isRunOpen: boolean;
  longest: number;
  now: number;
}

function StepRow({ step, isRunOpen, longest, now }: RowProps) {
  const timing = stepTiming(step, now);
  const retries = retriesOf(step);
  return (
    <div className="flex h-full flex-col justify-center gap-1">
      <div className="flex items-center gap-2">
        <StatusMark status={step.status} />
        <span className="font-medium">Step {step.number}</span>
        <span className="min-w-0 flex-1 truncate text-muted">{stepText(step, isRunOpen)}</span>
        {retries > 0 && (
          <span className="shrink-0 text-small text-warn">{retries === 1 ? "1 retry" : `${retries} retries`}</span>
        )}
        <span className="shrink-0 text-small text-muted tabular-nums">{precise(timing.totalMs)}</span>
      </div>
      <div className="flex items-center gap-3 pl-6">
        <TimingBar timing={timing} longest={longest} className="w-20 shrink-0" />
        <Figures
          items={[tokenWords(step.usage), step.cost_micros === null ? null : dollars(step.cost_micros)]}
          className="min-w-0 truncate"
        />
      </div>
    </div>
  );
}

function FoundPlaces({
  places,
  error,
  current,
  onOpen,
  handle,
}: Pick<StepsProps, "places" | "error" | "current" | "onOpen" | "handle">) {
  const all = useMemo(() => (places?.places ?? []).map((place, index) => ({ place, key: String(index) })), [places]);
  return (
    <>
      <p
        role="status"
        className={cx("border-b border-line px-3 py-1 text-small", error ? "text-danger" : "text-muted")}
      >
        {error ? sentence(error) : places ? countOf(places) : "Searching"}
      </p>
      <RecordList
        label="Places"
        items={all}
        keyOf={(item) => item.key}
        rowPx={PLACE_PX}
        current={all.find((item) => item.place.step_id === current)?.key ?? null}
        onOpen={(item) => onOpen(item.place.step_id)}
        render={(item) => <PlaceRow place={item.place} />}
        {...(handle ? { handle } : {})}
      />
    </>
  );
}

function countOf({ places, is_complete }: Places): string {
  if (places.length === 0) return "Found nowhere in this run.";
  if (!is_complete) return `The first ${places.length} places`;
  return places.length === 1 ? "1 place" : `${places.length} places`;
}

function PlaceRow({ place }: { place: Place }) {
  return (
    <div className="flex h-full flex-col justify-center gap-0.5">
      <span className="text-small text-muted">
        <span className="font-medium text-text">Step {place.number}</span> · {placeName(place)}
      </span>
      <span className="truncate font-mono text-small">
        {place.before}
        <mark className="rounded-xs bg-mark text-text">{place.found}</mark>
        {place.after}
      </span>
    </div>
  );
}
