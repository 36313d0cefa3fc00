/** Scrolling to a row: to the message that was just sent, and to a message or row that may not be loaded yet. */
import { type RefObject, useCallback, useEffect, useLayoutEffect, useRef, useState } from "react";
import { useStore } from "zustand";
import type { Row } from "@/chat/timeline_rows";
import { messageOf } from "@/features/timeline/article";
import { keysOf, type MountedKeys, type Range } from "@/features/timeline/row_heights";
import type { Scroller } from "@/features/timeline/scroller";
import type { ChatSession } from "@/state/chat_session";

/**
 * Scroll a message that was just sent to the top of the view. Its stored row takes over when it arrives. A message
 * that was queued is shown when it is its turn, unless the user has scrolled since.
 */
export function useSentRows(
  session: ChatSession,
  scroller: RefObject<Scroller | null>,
  rows: Row[],
  onShow: (key: string) => void,
): void {
  const pending = useStore(session.store, (state) => state.pending);
  const known = useRef(new Set<string>());
  // The messages without a stored row.
  const waiting = useRef(new Map<string, { sentAt: number; isEdit: boolean }>());
  useLayoutEffect(() => {
    for (const op of pending) {
      if ((op.kind !== "send" && op.kind !== "edit") || known.current.has(op.id)) continue;
      known.current.add(op.id);
      waiting.current.set(op.id, { sentAt: performance.now(), isEdit: op.kind === "edit" });
      if (op.kind === "edit" || !op.queued) scroller.current?.anchorTo(op.id);
    }
  }, [pending, scroller]);
  useLayoutEffect(() => {
    const view = scroller.current;
    if (!view || waiting.current.size === 0) return;
    const unsettled = new Set(pending.map((op) => op.id));
    const users = rows.filter((row) => row.kind === "user");
    for (const [id, { sentAt, isEdit }] of waiting.current) {
      if (unsettled.has(id)) continue;
      // The message of an edit has no id of its own.
      const own = users.findLast((row) => isEdit || row.message.client_id === id);
      if (!own) {
        // It waits in the queue, or was deleted.
        view.dropAnchor(id);
        continue;
      }
      waiting.current.delete(id);
      if (view.renameAnchor(id, own.key) || isEdit || view.keepsTo(sentAt)) continue;
      if (!view.anchorTo(own.key)) onShow(own.key);
    }
  }, [rows, pending, scroller, onShow]);
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
