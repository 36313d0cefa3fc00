/** Scrolling to a row: to the message that was just sent, and to a message or row that may not be loaded yet. */
import { type RefObject, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import { useStore } from "zustand";
import type { Row } from "@/chat/timeline_rows";
import { messageOf } from "@/features/timeline/article";
import { keysOf, type MountedKeys, type Range } from "@/features/timeline/row_heights";
import type { Scroller } from "@/features/timeline/scroller";
import type { ChatSession } from "@/state/chat_session";

/** Scroll a message that was just sent to the top of the view. Its stored row takes over when it arrives. */
export function useSentRows(session: ChatSession, scroller: RefObject<Scroller | null>, rows: Row[]): void {
  const pending = useStore(session.store, (state) => state.pending);
  const newest = useMemo(
    () => pending.findLast((op) => (op.kind === "send" && !op.queued) || op.kind === "edit")?.id ?? null,
    [pending],
  );
  const last = useRef<string | null>(null);
  useLayoutEffect(() => {
    if (newest && newest !== last.current) {
      last.current = newest;
      scroller.current?.anchorTo(newest);
    }
  }, [newest, scroller]);
  useLayoutEffect(() => {
    if (newest || !last.current) return;
    const user = rows.findLast((row) => row.kind === "user");
    if (user) scroller.current?.renameAnchor(user.key);
    scroller.current?.changed();
  }, [rows, newest, scroller]);
}

/** A row given by its key, or else a message. For a message without rows, the last row before it is used. */
interface ScrollTarget {
  message: number;
  key: string | null;
}

function indexOfTarget(rows: readonly Row[], { message, key }: ScrollTarget): number {
  if (key !== null) return rows.findIndex((row) => row.key === key);
  const first = rows.findIndex((row) => messageOf(row) === message);
  return first >= 0 ? first : rows.findLastIndex((row) => row.kind !== "day" && messageOf(row) < message);
}

/**
 * Return functions that scroll to a row or a message, which may be neither loaded nor mounted. The target is kept until
 * its row is mounted, because both loading and rendering take an unknown time.
 */
export function useScrollTarget(
  session: ChatSession,
  target: number | null,
  rows: Row[],
  { start, end }: Range,
  scroller: RefObject<Scroller | null>,
  setKeys: (change: (before: MountedKeys) => MountedKeys) => void,
) {
  const [wanted, setWanted] = useState<ScrollTarget | null>(null);
  const newest = useRef(0);
  const showRow = useCallback((key: string) => setWanted({ message: 0, key }), []);
  const showMessage = useCallback(
    async (message: number): Promise<void> => {
      newest.current = message;
      const isThere = await session.loadUntil(message);
      // A newer target replaces this one.
      if (isThere && newest.current === message) setWanted({ message, key: null });
    },
    [session],
  );
  useEffect(() => {
    session.onShow = (message) => void showMessage(message);
    return () => {
      session.onShow = null;
    };
  }, [session, showMessage]);
  const loaded = useStore(session.store, (state) => state.data.loaded);
  useEffect(() => {
    if (target !== null && loaded) void showMessage(target);
  }, [target, loaded, showMessage]);
  useLayoutEffect(() => {
    if (!wanted) return;
    const index = indexOfTarget(rows, wanted);
    const row = rows[index];
    if (!row) return;
    if (index < start || index >= end) {
      const keys = keysOf(rows, index - 20, index + 40);
      setKeys((before) => (before.start === keys.start && before.end === keys.end ? before : keys));
    } else if (scroller.current?.show(row.key)) setWanted(null);
  }, [wanted, rows, start, end, scroller, setKeys]);
  return { showRow, showMessage };
}
