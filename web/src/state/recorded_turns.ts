/** The turns of a chat that have debug records. Apart from the other records, because every chat needs it. */
import { queryOptions, useQuery } from "@tanstack/react-query";
import { useEffect, useRef } from "react";
import { useStore } from "zustand";
import { hasReason } from "@/api/access_reasons";
import { listRuns, type Run } from "@/api/debug";
import type { ChatView } from "@/api/types.gen";
import { isActive } from "@/chat/types";
import type { ChatSession } from "@/state/chat_session";
import { queryClient } from "@/state/queries";
import { useFeature } from "./login_session";

const RUNS = 100;
// Records are written after the turn has ended.
const LATE_RECORD_MS = 3_000;

/** The key of the query; the key of all records of a chat is its beginning. */
export const turnsKey = (chat: string) => ["debug", chat, "turns"] as const;

/** Return the newest run of a turn, given its first and last message; null if it was not recorded. */
export function runOfTurn(runs: readonly Run[], first: number, last: number): string | null {
  const found = runs.find(
    (run) =>
      run.kind === "chat_turn" &&
      run.trigger_message_id !== null &&
      run.trigger_message_id >= first &&
      run.trigger_message_id <= last,
  );
  return found?.id ?? null;
}

/** Return whether the user may see the debug records of a chat: its owner, or an administrator who gave a reason. */
export function useMaySeeRecords(chat: ChatView | undefined): boolean {
  const isOffered = useFeature("debug");
  return isOffered && chat !== undefined && (chat.my_role === "owner" || hasReason(chat.id));
}

/** The newest recorded turns of a chat, and whether it is recorded. */
export const turnsQuery = (chat: string) =>
  queryOptions({
    queryKey: turnsKey(chat),
    queryFn: ({ signal }) => listRuns(chat, { kind: "chat_turn", limit: RUNS }, signal),
    retry: false,
  });

/** Load again which turns of a chat are recorded, after each turn. */
export function useRecordedTurns(session: ChatSession): void {
  const isWorking = isActive(useStore(session.store, (state) => state.data.status));
  const wasWorking = useRef(false);
  useEffect(() => {
    const hasEnded = wasWorking.current && !isWorking;
    wasWorking.current = isWorking;
    if (!hasEnded) return;
    const refetch = () => void queryClient.invalidateQueries({ queryKey: turnsKey(session.id) });
    refetch();
    const late = setTimeout(refetch, LATE_RECORD_MS);
    return () => clearTimeout(late);
  }, [session, isWorking]);
}

/** Return the run of a turn, by its first and last message; null if the turn is not recorded. */
export function useRunOfTurn(chat: string, first: number, last: number): string | null {
  const { data } = useQuery({
    ...turnsQuery(chat),
    // Loaded by `useHasDebug`.
    enabled: false,
    select: (page) => runOfTurn(page.runs, first, last),
    notifyOnChangeProps: ["data"],
  });
  return data ?? null;
}

/** Return whether the Debug tab is shown: calls are or can be recorded, or there are records. */
export function useHasDebug(chat: ChatView | undefined): boolean {
  const maySee = useMaySeeRecords(chat);
  const isOwner = chat?.my_role === "owner";
  const { data } = useQuery({
    ...turnsQuery(chat?.id ?? ""),
    enabled: maySee,
    select: ({ recording, runs }) => recording.is_on || (recording.is_allowed && isOwner) || runs.length > 0,
    notifyOnChangeProps: ["data"],
  });
  return maySee && (data ?? false);
}
