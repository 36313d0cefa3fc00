import { Suspense, useEffect, useMemo, useRef, useState } from "react";
import { useSearchParams } from "react-router";
import type { RunDetail } from "@/api/debug";
import { isStatus, sentence } from "@/api/errors";
import type { ChatView } from "@/api/types.gen";
import type { RecordListHandle } from "@/features/debug/record_list";
import { ReplayDialog } from "@/features/debug/replay_dialog";
import { RunList } from "@/features/debug/run_list";
import { RunHead, Steps } from "@/features/debug/run_view";
import { StepView } from "@/features/debug/step_view";
import { Empty, Waiting } from "@/features/panel/workspace_state";
import { chatSession } from "@/state/chat_sessions";
import { type RunFilter, useFollowRecords, useRun, useRunSearch, useRuns, useStep } from "@/state/debug_records";
import { useShownStatus } from "@/state/session_hooks";
import { Button } from "@/ui/button";
import { cx } from "@/ui/cx";
import { useDebounced } from "@/ui/debounced";
import { lazyPart } from "@/ui/lazy_part";
import { type DebugPlace, placeOf, useGoToPlace } from "./debug_address";

const CompareDialog = lazyPart(async () => (await import("@/features/debug/compare_dialog")).CompareDialog);

/** The tab with the debug records of a chat: its runs, the steps of a run, and one step. */
export function DebugTab({ chat }: { chat: ChatView }) {
  const [params] = useSearchParams();
  const place = placeOf(params);
  const go = useGoToPlace();
  const isLive = useFollowRecords(chat);
  const list = useRef<RecordListHandle>(null);
  return (
    <div className="@container flex min-h-0 flex-1 flex-col">
      {place.run === null ? (
        <ChatRuns chat={chat} isLive={isLive} go={go} handle={list} />
      ) : (
        <ChatRun key={place.run} chat={chat} place={{ ...place, run: place.run }} isLive={isLive} go={go} />
      )}
    </div>
  );
}

type Go = (place: DebugPlace) => void;

interface RunsProps {
  chat: ChatView;
  isLive: boolean;
  go: Go;
  handle: React.RefObject<RecordListHandle | null>;
}

// The chosen filter, until the page is closed.
let lastFilter: RunFilter = "all";

function ChatRuns({ chat, isLive, go, handle }: RunsProps) {
  const [filter, setFilter] = useState(lastFilter);
  const status = useShownStatus(chatSession(chat.id));
  const query = useRuns(chat.id, filter, isLive, status);
  const runs = useMemo(() => query.data?.pages.flatMap((page) => page.runs), [query.data]);
  return (
    <RunList
      chat={chat}
      runs={runs}
      recording={query.data?.pages[0]?.recording}
      error={query.error}
      filter={filter}
      onFilter={(next) => {
        lastFilter = next;
        setFilter(next);
      }}
      onOpen={(run) => go({ run, step: null })}
      onMore={query.hasNextPage ? () => void query.fetchNextPage() : null}
      isLoadingMore={query.isFetchingNextPage}
      onRetry={() => void query.refetch()}
      handle={handle}
    />
  );
}

interface RunProps {
  chat: ChatView;
  place: DebugPlace & { run: string };
  isLive: boolean;
  go: Go;
}

function ChatRun({ chat, place, isLive, go }: RunProps) {
  const { data: run, error, refetch } = useRun(chat.id, place.run, isLive);
  const back = () => go({ run: null, step: null });
  const isGone = isStatus(error, 404, 400);
  if (run && !isGone) return <LoadedRun chat={chat} run={run} step={place.step} go={go} />;
  if (!error) return <Waiting text="Loading the run" />;
  return (
    <Empty text={isGone ? "This run does not exist. It may have been deleted." : sentence(error)}>
      {isGone ? <Button onClick={back}>All runs</Button> : <Button onClick={() => void refetch()}>Try again</Button>}
    </Empty>
  );
}

const SEARCH_AFTER_MS = 250;

interface LoadedProps {
  chat: ChatView;
  run: RunDetail;
  /** The number of the chosen step. */
  step: number | null;
  go: Go;
}

function LoadedRun({ chat, run, step: number, go }: LoadedProps) {
  const [query, setQuery] = useState("");
  const [isReplaying, setReplaying] = useState(false);
  const [isComparing, setComparing] = useState(false);
  const wanted = query.trim();
  const search = useRunSearch(chat.id, run, useDebounced(wanted, SEARCH_AFTER_MS));
  const list = useRef<RecordListHandle>(null);
  const heading = useRef<HTMLHeadingElement>(null);
  const box = useRef<HTMLDivElement>(null);
  // A run of one step needs no list.
  const isSingle = run.steps.length === 1;
  const index = run.steps.findIndex((one) => one.number === number);
  const summary = run.steps[index < 0 && isSingle ? 0 : index];
  const open = (step: string | null) =>
    go({ run: run.id, step: run.steps.find((one) => one.id === step)?.number ?? null });
  const backToRuns = () => go({ run: null, step: null });

  // Focus follows where the list is not beside the step: it disappears when a step is opened.
  const shown = summary?.id ?? null;
  const before = useRef(shown);
  useEffect(() => {
    if (before.current === shown) return;
    const wasList = before.current === null;
    before.current = shown;
    box.current?.scrollTo({ top: 0 });
    if (shown === null) list.current?.focus();
    else if (wasList && !list.current?.isVisible()) heading.current?.focus({ preventScroll: true });
  }, [shown]);

  const {
    data: loaded,
    error,
    refetch,
  } = useStep(chat.id, run.id, shown, summary ? `${summary.status} ${summary.attempts.length}` : "");
  const showMessage = useShowMessage(chat.id);
  const trigger = run.trigger_message_id;
  const at = summary ? run.steps.indexOf(summary) : -1;
  const previous = run.steps[at - 1];
  const next = run.steps[at + 1];
  const answer = summary?.assistant_message_id ?? null;
  return (
    <>
      <div className={cx(summary && !isSingle && "hidden @3xl:block")}>
        <RunHead
          chat={chat.id}
          run={run}
          onBack={backToRuns}
          onRun={(id) => go({ run: id, step: null })}
          onShowMessage={trigger === null ? null : () => showMessage(trigger)}
          onCompare={() => setComparing(true)}
        />
      </div>
      <div className="flex min-h-0 flex-1">
        {!isSingle && (
          <div
            className={cx(
              "min-h-0 min-w-0 flex-1 flex-col @3xl:flex @3xl:w-88 @3xl:flex-none @3xl:border-r @3xl:border-line",
              summary ? "hidden" : "flex",
            )}
          >
            <Steps
              run={run}
              current={shown}
              onOpen={open}
              query={query}
              onQuery={setQuery}
              places={search.data}
              error={search.error}
              handle={list}
            />
          </div>
        )}
        {summary ? (
          <div ref={box} className="min-h-0 min-w-0 flex-1 overflow-y-auto">
            <StepView
              key={summary.id}
              chat={chat.id}
              run={run.id}
              summary={summary}
              isRunOpen={run.status === "in_progress"}
              count={run.steps.length}
              step={loaded}
              error={error}
              onRetry={() => void refetch()}
              wanted={wanted}
              heading={heading}
              actions={{
                onPrevious: previous ? () => open(previous.id) : null,
                onNext: next ? () => open(next.id) : null,
                onBack: isSingle ? null : () => open(null),
                onShowMessage: answer === null ? null : () => showMessage(answer),
                onReplay: chat.my_role === "owner" ? () => setReplaying(true) : null,
              }}
            />
          </div>
        ) : (
          <div className="hidden min-h-0 flex-1 @3xl:flex">
            {run.steps.length > 0 && <Empty text="Choose a step to see its prompt and its answer." />}
          </div>
        )}
      </div>
      {isComparing && (
        <Suspense>
          <CompareDialog chat={chat.id} run={run} onClose={() => setComparing(false)} onStep={open} />
        </Suspense>
      )}
      {isReplaying && loaded && (
        <ReplayDialog
          chat={chat.id}
          run={run.id}
          step={loaded}
          modelConfigId={run.model_config_id}
          model={run.model ?? "unknown"}
          onClose={() => setReplaying(false)}
        />
      )}
    </>
  );
}

// On narrower screens the panel covers the conversation.
const BESIDE_PX = 1024;

/** Return a function that scrolls the conversation to a message. Where the panel covers it, the panel is closed. */
function useShowMessage(chat: string): (message: number) => void {
  const [, setParams] = useSearchParams();
  return (message) => {
    if (window.innerWidth < BESIDE_PX) {
      setParams((params) => {
        const next = new URLSearchParams(params);
        for (const name of ["panel", "step"]) next.delete(name);
        return next;
      });
    }
    chatSession(chat).onShow?.(message);
  };
}
