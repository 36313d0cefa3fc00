/** Cached debug records of chats, and the updates that the server announces while a panel shows them. */
import { skipToken, useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useEffect, useMemo } from "react";
import { useStore } from "zustand";
import { createStore } from "zustand/vanilla";
import type { RecordStatus, RunDetail, RunKind } from "@/api/debug";
import * as api from "@/api/debug";
import { isStatus } from "@/api/errors";
import type { ChatView } from "@/api/types.gen";
import { isActive, type Status } from "@/chat/types";
import { queryClient } from "@/state/queries";
import { turnsKey } from "@/state/recorded_turns";
import { browserHost, Connection, type ConnectionState, type Host, INITIAL_CONNECTION } from "./stream_connection";

const RUNS = 100;
const POLL_MS = 5_000;
const POLL_AFTER_ERROR_MS = 30_000;
const COLLECT_MS = 400;
const COLLECT_MS_PER_STEP = 2;
const KEPT_MS = 60_000;

export const debugKeys = {
  chat: (chat: string) => ["debug", chat] as const,
  runs: (chat: string, filter: RunFilter) => ["debug", chat, "runs", filter] as const,
  run: (chat: string, run: string) => ["debug", chat, "run", run] as const,
  step: (chat: string, run: string, step: string) => ["debug", chat, "step", run, step] as const,
  attempt: (chat: string, run: string, step: string, number: number) =>
    ["debug", chat, "attempt", run, step, number] as const,
};

/** Choices of the list of runs. */
export type RunFilter = "all" | "error" | RunKind;

function queryOf(filter: RunFilter): { kind?: RunKind; status?: RecordStatus } {
  if (filter === "all") return {};
  return filter === "error" ? { status: "error" } : { kind: filter };
}

/** Return when to ask again: never while the stream reports changes, and not after all runs have ended. */
export function pollAfter(isLive: boolean, isOpen: boolean, hasFailed: boolean): number | false {
  if (isLive || !isOpen) return false;
  return hasFailed ? POLL_AFTER_ERROR_MS : POLL_MS;
}

/** Return the runs of a chat, newest first, in pages of 100. */
export function useRuns(chat: string, filter: RunFilter, isLive: boolean, status: Status) {
  return useInfiniteQuery({
    queryKey: debugKeys.runs(chat, filter),
    queryFn: ({ pageParam, signal }) =>
      api.listRuns(chat, { ...queryOf(filter), limit: RUNS, cursor: pageParam ?? undefined }, signal),
    initialPageParam: null as string | null,
    getNextPageParam: (page) => page.next_cursor,
    refetchInterval: ({ state }) => {
      const isRecorded = state.data?.pages[0]?.recording.is_on ?? false;
      const isOpen =
        (isRecorded && isActive(status)) ||
        (state.data?.pages.some((page) => page.runs.some((run) => run.status === "in_progress")) ?? true);
      return pollAfter(isLive, isOpen, state.status === "error");
    },
    retry: false,
  });
}

export function useRun(chat: string, run: string, isLive: boolean) {
  return useQuery({
    queryKey: debugKeys.run(chat, run),
    queryFn: ({ signal }) => api.getRun(chat, run, signal),
    refetchInterval: ({ state }) =>
      pollAfter(
        isLive,
        !isStatus(state.error, 404, 400) && (state.data?.status ?? "in_progress") === "in_progress",
        state.status === "error",
      ),
    gcTime: KEPT_MS,
    retry: false,
  });
}

/** Return a step with its prompt. `updated` changes when the step does, which loads it again. */
export function useStep(chat: string, run: string, step: string | null, updated: string) {
  return useQuery({
    queryKey: [...debugKeys.step(chat, run, step ?? ""), updated],
    queryFn: step === null ? skipToken : ({ signal }) => api.getStep(chat, run, step, signal),
    placeholderData: (known) => (known?.id === step ? known : undefined),
    // A step that has ended does not change.
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: KEPT_MS,
    retry: false,
  });
}

export function useAttempt(chat: string, run: string, step: string, number: number, isOpen: boolean) {
  return useQuery({
    queryKey: debugKeys.attempt(chat, run, step, number),
    queryFn: isOpen ? ({ signal }) => api.getAttempt(chat, run, step, number, signal) : skipToken,
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: KEPT_MS,
    retry: false,
  });
}

/**
 * Follows the changes of a chat's debug records. It has its own stream, without messages and parts: the stream of the
 * chat stays as it is when the panel opens.
 */
export class DebugFollower {
  readonly store = createStore<{ conn: ConnectionState }>(() => ({ conn: INITIAL_CONNECTION }));
  private readonly connection: Connection;
  private readonly host: Host;
  private readonly onChange: (runs: ReadonlySet<string | null>) => void;
  private readonly collectMs: () => number;
  private readonly changed = new Set<string | null>();
  private timer: unknown = null;

  constructor(
    chatId: string,
    onChange: (runs: ReadonlySet<string | null>) => void,
    { collectMs = () => COLLECT_MS, host = browserHost }: { collectMs?: () => number; host?: Host } = {},
  ) {
    this.host = host;
    this.onChange = onChange;
    this.collectMs = collectMs;
    this.connection = new Connection(
      {
        path: `/chats/${encodeURIComponent(chatId)}/stream`,
        query: () => ({ debug: true, parts: false, mark_read: false, tail: 0 }),
        // Changes may have been missed before the connection was there.
        onOpen: () => this.note(null),
        onState: (conn) => this.store.setState({ conn }),
        onFrame: (events) => {
          for (const event of events) if (event.type === "debug_update") this.note(event.run_id);
        },
      },
      host,
    );
  }

  /** Collect changes for a moment: a running step is announced up to four times a second. */
  private note(run: string | null): void {
    this.changed.add(run);
    this.timer ??= this.host.setTimer(() => {
      const runs = new Set(this.changed);
      this.changed.clear();
      this.timer = null;
      this.onChange(runs);
    }, this.collectMs());
  }

  open(): () => void {
    this.connection.connect();
    return () => {
      this.connection.close();
      this.host.clearTimer(this.timer);
      this.timer = null;
    };
  }
}

/** Load changed records again. Null stands for all runs. */
export function refetchRecords(chat: string, runs: ReadonlySet<string | null>): void {
  // A running request is not cancelled: with steady changes, no request would ever end.
  const refetch = (queryKey: readonly unknown[]) =>
    void queryClient.refetchQueries({ queryKey, type: "active" }, { cancelRefetch: false });
  refetch(["debug", chat, "runs"]);
  refetch(turnsKey(chat));
  if (runs.has(null)) refetch(["debug", chat, "run"]);
  else for (const run of runs) if (run !== null) refetch(debugKeys.run(chat, run));
}

/** Return how long changes are collected: longer for a run with many steps, because all of them are loaded again. */
function collectMsOf(chat: string): number {
  const shown = queryClient.getQueriesData<RunDetail>({ queryKey: ["debug", chat, "run"], type: "active" });
  const steps = Math.max(0, ...shown.map(([, run]) => run?.steps.length ?? 0));
  return COLLECT_MS + steps * COLLECT_MS_PER_STEP;
}

/** Follow the debug records of a chat while the component is mounted. Return whether changes are announced. */
export function useFollowRecords(chat: ChatView): boolean {
  const follower = useMemo(
    () =>
      new DebugFollower(chat.id, (runs) => refetchRecords(chat.id, runs), { collectMs: () => collectMsOf(chat.id) }),
    [chat.id],
  );
  // The server announces changes to the owner only.
  const isOwner = chat.my_role === "owner";
  useEffect(() => (isOwner ? follower.open() : undefined), [follower, isOwner]);
  return useStore(follower.store, (state) => state.conn.phase) === "live";
}

export const MIN_SEARCH_CHARS = 2;

/** Search the prompts, answers and errors of a run. While it goes on, a running run is searched again after changes. */
export function useRunSearch(chat: string, run: RunDetail, wanted: string) {
  return useQuery({
    queryKey: ["debug", chat, "search", run.id, wanted, run.updated_at],
    queryFn: wanted.length < MIN_SEARCH_CHARS ? skipToken : ({ signal }) => api.searchRun(chat, run.id, wanted, signal),
    placeholderData: (known, query) => (query?.queryKey[4] === wanted ? known : undefined),
    gcTime: KEPT_MS,
    retry: false,
  });
}
