import { ArrowDown } from "lucide-react";
import {
  Component,
  lazy,
  memo,
  type ReactNode,
  Suspense,
  useCallback,
  useEffect,
  useLayoutEffect,
  useMemo,
  useRef,
  useState,
} from "react";
import { useStore } from "zustand";
import { createStore } from "zustand/vanilla";
import { plainText, sendRows, shownOrder } from "@/chat/pending";
import { type Row, RowMaker } from "@/chat/rows";
import { isActive } from "@/chat/types";
import { useConversation } from "@/features/conversation/context";
import { walksFeed } from "@/features/timeline/feed_keys";
import { Find } from "@/features/timeline/find";
import { LiveRow } from "@/features/timeline/live_row";
import { Prompts } from "@/features/timeline/prompts";
import { useReadMark } from "@/features/timeline/read_mark";
import { RowView } from "@/features/timeline/row";
import { Scroller, type ScrollerState } from "@/features/timeline/scroller";
import { ErrorRow, RetryBanner } from "@/features/timeline/trouble";
import { PendingRow } from "@/features/timeline/user_row";
import { dayKey } from "@/features/timeline/when";
import { useWhole } from "@/features/timeline/whole";
import { ALL_UP_TO, firstRow, Heights, type Range } from "@/features/timeline/windowed";
import type { ChatSession } from "@/state/chat_session";
import { useShownStatus } from "@/state/hooks";
import { useDisplay } from "@/state/queries";
import { Button } from "@/ui/button";
import { copyText } from "@/ui/clipboard";
import { cx } from "@/ui/cx";
import { pulsing } from "@/ui/motion";

// Few chats ask for anything: it is loaded by the first that does.
const ActionCard = lazy(async () => ({ default: (await import("@/features/tools/action_card")).ActionCard }));

// Where chats were left in this tab.
const places = new Map<string, { key: string; offset: number }>();

interface Props {
  session: ChatSession;
  /** A message to open at. */
  target: number | null;
  /** From here on rows are about to be replaced by an edit. */
  dimFrom: number | null;
}

/** Make the rows of a session; those that did not change keep their identity. */
export function useRows(session: ChatSession): Row[] {
  const messages = useStore(session.store, (state) => state.data.messages);
  const order = useStore(session.store, (state) => state.data.order);
  const edit = useStore(session.store, (state) => state.pending.find((op) => op.kind === "edit") ?? null);
  // The stored status: a message under way begins another turn, and the last stored one is over.
  const status = useStore(session.store, (state) => state.data.status);
  const { groupTools } = useDisplay();
  const maker = useRef(new RowMaker());
  return useMemo(() => {
    // An edit takes away what it replaces; the filtered list is made here, since a selector must not make new ones.
    const shown = shownOrder({ ...session.store.getState().data, order }, edit ? [edit] : []);
    const held = shown.flatMap((id) => messages.get(id) ?? []);
    return maker.current.make(held, isActive(status), { grouped: groupTools, dayOf: dayKey });
  }, [session, messages, order, edit, status, groupTools]);
}

/** The transcript of a chat. */
export function Timeline({ session, target, dimFrom }: Props) {
  const rows = useRows(session);
  const box = useRef<HTMLDivElement>(null);
  const content = useRef<HTMLDivElement>(null);
  const tail = useRef<HTMLDivElement>(null);
  const scroller = useRef<Scroller | null>(null);
  const list = useRef<HTMLDivElement>(null);
  const [heights] = useState(() => new Heights());
  const [view, setView] = useState<View>({ isFollowing: false, isBelow: false, isFar: false });
  const [keys, setKeys] = useState<Keys>({ start: null, end: null });
  const isEndSeen = useCallback(() => scroller.current?.isEndSeen ?? true, []);
  // Beside the state of this component: the first row in view changes all the time, and only one bar shows it.
  const [top] = useState(() => createStore<{ key: string | null }>(() => ({ key: null })));
  const loaded = useStore(session.store, (state) => state.data.loaded);
  const hasMore = useStore(session.store, (state) => state.data.hasMore);
  const { fullWidth, followAgent } = useDisplay();
  heights.use(rows);
  const isWhole = useWhole(loaded, target !== null || places.has(session.id));
  const range = useMemo(() => rangeOf(rows, heights, keys, isWhole), [rows, heights, keys, isWhole]);
  const rowsNow = useRef(rows);
  rowsNow.current = rows;

  // Rows around a place; quick to compute, and renders only when the edges move.
  const window_ = useCallback(() => {
    const element = box.current;
    const all = rowsNow.current;
    if (!element || all.length <= ALL_UP_TO) return;
    const next = heights.rangeFor(element.scrollTop, element.clientHeight);
    const selected = !(document.getSelection()?.isCollapsed ?? true);
    setKeys((before) => {
      const old = rangeOf(all, heights, before, true);
      const start = selected ? Math.min(old.start, next.start) : next.start;
      const end = selected ? Math.max(old.end, next.end) : next.end;
      const wanted = keysOf(all, start, end);
      return wanted.start === before.start && wanted.end === before.end ? before : wanted;
    });
  }, [heights]);

  useLayoutEffect(() => {
    const element = box.current;
    const end = tail.current;
    const inner = list.current;
    if (!element || !end || !inner) return;
    let shown: View | null = null;
    const own = new Scroller(element, inner, end, (state) => {
      const next = viewOf(state);
      if (!shown || !sameView(shown, next)) setView(next);
      shown = next;
      if (top.getState().key !== state.top) top.setState({ key: state.top });
    });
    scroller.current = own;
    const place = places.get(session.id);
    if (place) own.restorePlace(place);
    const settle = setTimeout(() => own.mode === "opening" && own.setMode("reading"), 1500);
    return () => {
      clearTimeout(settle);
      const left = own.place();
      if (left) places.set(session.id, left);
      else places.delete(session.id);
    };
  }, [session, top]);

  const isLong = rows.length > ALL_UP_TO;
  // Any change of size above or at the end: the place is kept.
  useEffect(() => {
    const inner = content.current;
    const element = box.current;
    const feed = list.current;
    if (!inner || !element || !feed) return;
    const observer = new ResizeObserver((entries) => {
      for (const entry of entries) {
        const key = (entry.target as HTMLElement).dataset.key;
        if (key) heights.set(key, entry.borderBoxSize[0]?.blockSize ?? entry.contentRect.height);
      }
      scroller.current?.changed();
    });
    observer.observe(inner);
    observer.observe(element);
    // Heights of single rows matter where some are not mounted; the browser looks at each of them with every frame.
    if (!isLong) return () => observer.disconnect();
    for (const row of feed.children) observer.observe(row);
    // Only rows that come are measured anew: looking at all of them again costs a layout each time.
    const added = new MutationObserver((changes) => {
      for (const change of changes) {
        for (const node of change.removedNodes) if (node instanceof Element) observer.unobserve(node);
        for (const node of change.addedNodes) if (node instanceof Element) observer.observe(node);
      }
    });
    added.observe(feed, { childList: true });
    return () => {
      observer.disconnect();
      added.disconnect();
    };
  }, [heights, isLong]);

  // biome-ignore lint/correctness/useExhaustiveDependencies: whenever the mounted rows change
  useLayoutEffect(() => {
    scroller.current?.changed();
  }, [rows, range.start, range.end]);

  useSentRows(session, scroller, rows);
  useOlder(session, box);
  useReadMark(session, view.isFar, loaded);

  useEffect(() => {
    if (followAgent) scroller.current?.follow();
  }, [followAgent]);

  const { showRow, showMessage } = useGoal(session, target, rows, range, scroller, setKeys);

  const mounted = useMemo(() => rows.slice(range.start, range.end), [rows, range]);
  const width = fullWidth ? "max-w-none" : "max-w-[48rem]";
  return (
    <div className="relative min-h-0 flex-1">
      <Prompts rows={rows} top={top} onShow={showRow} />
      <Find session={session} rows={rows} box={box} onShow={showRow} onShowMessage={showMessage} />
      {/* biome-ignore lint/a11y/noStaticElementInteractions: acts of the reader tell wanted scrolling from other */}
      <div
        ref={box}
        className="h-full overflow-y-auto overscroll-contain bg-bg1 [overflow-anchor:none]"
        onScroll={() => {
          scroller.current?.scrolled();
          window_();
        }}
        onWheel={() => scroller.current?.acted()}
        onTouchMove={() => scroller.current?.acted()}
        onPointerDown={() => scroller.current?.acted()}
        onKeyDown={(event) => {
          if (/^(Page|Arrow|Home|End| )/.test(event.key)) scroller.current?.acted();
          if (walksFeed(event.key, event.target)) event.preventDefault();
          if (event.key === "End" && !isField(event.target)) {
            event.preventDefault();
            scroller.current?.follow();
          }
        }}
      >
        <div ref={content} className={cx("mx-auto w-full px-4 pt-6 pb-4", width)}>
          <Older session={session} />
          <div ref={list} role="feed" aria-label="Conversation" data-rows>
            <div style={{ height: heights.top(range.start) }} />
            {mounted.map((row, index) => (
              <Article
                key={row.key}
                row={row}
                dim={dimFrom !== null && messageOf(row) >= dimFrom}
                place={range.start + index + 1}
                of={hasMore ? -1 : rows.length}
              />
            ))}
            <div style={{ height: heights.after(range.end) }} />
          </div>
          <Tail session={session} isEndSeen={isEndSeen} />
          <div ref={tail} aria-hidden />
        </div>
      </div>
      {!view.isFollowing && view.isBelow && (
        <div className="pointer-events-none absolute inset-x-0 bottom-3 flex justify-center">
          <Button
            size="small"
            className="pop-in pointer-events-auto rounded-full! bg-bg1 shadow-pop"
            onClick={() => scroller.current?.follow()}
          >
            <ArrowDown aria-hidden className="size-3.5" />
            <PillText session={session} />
          </Button>
        </div>
      )}
    </div>
  );
}

/** As much of the scroll as anything renders for: growing text below the view changes none of it. */
interface View {
  isFollowing: boolean;
  isBelow: boolean;
  isFar: boolean;
}

/** The first row and the row after the last one that are mounted; null for the ends of the chat. */
interface Keys {
  start: string | null;
  end: string | null;
}

function viewOf({ mode, below }: ScrollerState): View {
  return { isFollowing: mode === "following", isBelow: below > 80, isFar: below > 200 };
}

function sameView(a: View, b: View): boolean {
  return a.isFollowing === b.isFollowing && a.isBelow === b.isBelow && a.isFar === b.isFar;
}

function isField(target: EventTarget): boolean {
  return target instanceof HTMLInputElement || target instanceof HTMLTextAreaElement;
}

function messageOf(row: Row): number {
  return Number(/^m(\d+)/.exec(row.key)?.[1] ?? 0);
}

function rangeOf(rows: readonly Row[], heights: Heights, keys: Keys, isWhole: boolean): Range {
  if (!isWhole) return { start: firstRow(rows, innerHeight), end: rows.length };
  if (rows.length <= ALL_UP_TO) return { start: 0, end: rows.length };
  const end = heights.indexOf(keys.end);
  const start = heights.indexOf(keys.start);
  const last = end < 0 ? rows.length : end;
  if (start < 0) return { start: Math.max(0, last - 60), end: last };
  return { start: Math.min(rows[start - 1]?.kind === "day" ? start - 1 : start, last), end: last };
}

/** The names of these edges. That of a day moves with every older page: its row is named by the one below it. */
function keysOf(rows: readonly Row[], start: number, end: number): Keys {
  const first = Math.max(0, start);
  const named = rows[first]?.kind === "day" ? rows[first + 1] : rows[first];
  return { start: named?.key ?? null, end: rows[end]?.key ?? null };
}

function headingOf(row: Row): string | null {
  if (row.kind === "user") return `You: ${plainText(row.message.content).slice(0, 60)}`;
  return null;
}

/** A row in its place, one article of the feed, of -1 when nobody knows how many. User rows have a hidden heading: heading keys walk the conversation. */
const Article = memo(function Article({ row, dim, place, of }: { row: Row; dim: boolean; place: number; of: number }) {
  const heading = headingOf(row);
  return (
    <article
      tabIndex={-1}
      aria-posinset={place}
      aria-setsize={of}
      data-key={row.key}
      data-kind={row.kind}
      className={cx("pb-3", dim && "pointer-events-none opacity-40", row.kind === "user" && "pt-3")}
      inert={dim}
    >
      {/* Hidden words are placed by the nearest such box: without one they would stay behind when rows scroll. */}
      {heading && (
        <div className="relative">
          <h2 className="sr-only">{heading}</h2>
        </div>
      )}
      <RowBoundary row={row}>
        <RowView row={row} />
      </RowBoundary>
    </article>
  );
});

/** A row that cannot be shown takes nothing else with it. */
class RowBoundary extends Component<{ row: Row; children: ReactNode }, { failed: boolean }> {
  override state = { failed: false };
  static getDerivedStateFromError() {
    return { failed: true };
  }
  override render() {
    if (!this.state.failed) return this.props.children;
    return (
      <p className="flex items-center gap-2 rounded-lg bg-bg2 px-3 py-2 text-small text-muted">
        Could not show this.
        <Button size="small" onClick={() => void copyText(JSON.stringify(this.props.row))}>
          Copy raw content
        </Button>
      </p>
    );
  }
}

function Older({ session }: { session: ChatSession }) {
  const older = useStore(session.store, (state) => state.older);
  const hasMore = useStore(session.store, (state) => state.data.hasMore);
  if (!hasMore) return null;
  return (
    <div className="flex h-10 items-center justify-center text-small text-muted">
      {older === "error" ? (
        <Button size="small" onClick={() => void session.loadOlder()}>
          Older messages could not be loaded. Retry
        </Button>
      ) : (
        <span ref={older === "loading" ? pulsing : null}>Older messages</span>
      )}
    </div>
  );
}

function PillText({ session }: { session: ChatSession }) {
  const active = isActive(useShownStatus(session));
  return <>{active ? "New activity below" : "Jump to the end"}</>;
}

/** What stands behind the stored rows: sends under way, the running step, retry, failure, what is asked of the reader. */
function Tail({ session, isEndSeen }: { session: ChatSession; isEndSeen: () => boolean }) {
  const { editMessage } = useConversation();
  const pending = useStore(session.store, (state) => state.pending);
  const error = useStore(session.store, (state) => state.data.error);
  const retry = useStore(session.store, (state) => state.data.retry);
  const action = useStore(session.store, (state) => state.data.action);
  const skew = useStore(session.store, (state) => state.data.clockSkew);
  const queued = useStore(session.store, (state) => state.data.queue.length);
  const status = useShownStatus(session);
  const sends = useMemo(() => sendRows(pending), [pending]);
  const edit = pending.find((op) => op.kind === "edit");
  const editLast = () => {
    const { messages, order } = session.store.getState().data;
    const last = order.findLast((id) => messages.get(id)?.role === "user");
    const message = last === undefined ? undefined : messages.get(last);
    if (message) editMessage(message);
  };
  return (
    <div className="space-y-3">
      {edit?.kind === "edit" && (
        <div data-key={edit.id}>
          <PendingRow id={edit.id} parts={edit.parts} failed={undefined} />
        </div>
      )}
      {sends.map((send) => (
        <div key={send.id} data-key={send.id} className="pt-3">
          <PendingRow id={send.id} parts={send.parts} failed={send.failed} />
        </div>
      ))}
      {isActive(status) && status !== "requires_action" && <LiveRow session={session} isEndSeen={isEndSeen} />}
      {status === "requires_action" && action && (
        <Suspense>
          <ActionCard action={action} clockSkew={skew} />
        </Suspense>
      )}
      {retry && <RetryBanner retry={retry} clockSkew={skew} />}
      {status === "error" && error && <ErrorRow error={error} queued={queued} lastPrompt={editLast} />}
    </div>
  );
}

/** A prompt that was just sent goes to the top; when it is stored, its stored row stands in for it. */
function useSentRows(session: ChatSession, scroller: React.RefObject<Scroller | null>, rows: Row[]): void {
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

interface Goal {
  /** As good as its row is the last one before it: not every message has rows of its own. */
  message: number;
  key: string | null;
}

function rowOfGoal(rows: readonly Row[], { message, key }: Goal): number {
  if (key !== null) return rows.findIndex((row) => row.key === key);
  const first = rows.findIndex((row) => messageOf(row) === message);
  return first >= 0 ? first : rows.findLastIndex((row) => row.kind !== "day" && messageOf(row) < message);
}

/**
 * Go to rows that may be neither loaded nor mounted. A goal is kept until its row is there: when that is depends on
 * the server and on when React gets round to it, and a moment that is guessed is sometimes too early.
 */
function useGoal(
  session: ChatSession,
  target: number | null,
  rows: Row[],
  { start, end }: Range,
  scroller: React.RefObject<Scroller | null>,
  setKeys: (change: (before: Keys) => Keys) => void,
) {
  const [goal, setGoal] = useState<Goal | null>(null);
  const newest = useRef(0);
  const showRow = useCallback((key: string) => setGoal({ message: 0, key }), []);
  const showMessage = useCallback(
    async (message: number): Promise<void> => {
      newest.current = message;
      const isThere = await session.loadUntil(message);
      // Somebody who is already elsewhere does not want to be taken there.
      if (isThere && newest.current === message) setGoal({ message, key: null });
    },
    [session],
  );
  const loaded = useStore(session.store, (state) => state.data.loaded);
  useEffect(() => {
    if (target !== null && loaded) void showMessage(target);
  }, [target, loaded, showMessage]);
  useLayoutEffect(() => {
    if (!goal) return;
    const index = rowOfGoal(rows, goal);
    const row = rows[index];
    if (!row) return;
    if (index < start || index >= end) {
      const wanted = keysOf(rows, index - 20, index + 40);
      setKeys((before) => (before.start === wanted.start && before.end === wanted.end ? before : wanted));
    } else if (scroller.current?.show(row.key)) setGoal(null);
  }, [goal, rows, start, end, scroller, setKeys]);
  return { showRow, showMessage };
}

/** Older pages are loaded when the top is near, one at a time. */
function useOlder(session: ChatSession, box: React.RefObject<HTMLDivElement | null>): void {
  const hasMore = useStore(session.store, (state) => state.data.hasMore);
  const older = useStore(session.store, (state) => state.older);
  const first = useStore(session.store, (state) => state.data.order[0]);
  useEffect(() => {
    const element = box.current;
    if (!element || !hasMore || older !== "idle" || first === undefined) return;
    const check = () => {
      if (element.scrollTop < 1000) void session.loadOlder();
    };
    // Not at once: a chat opens at its end, and is at its top for a moment before.
    const timer = setTimeout(check, 300);
    element.addEventListener("scroll", check, { passive: true });
    return () => {
      clearTimeout(timer);
      element.removeEventListener("scroll", check);
    };
  }, [session, box, hasMore, older, first]);
}
