import { ArrowDown } from "lucide-react";
import { Suspense, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import { flushSync } from "react-dom";
import { useStore } from "zustand";
import { createStore } from "zustand/vanilla";
import { shownOrder } from "@/chat/pending_operations";
import { type Row, RowMaker } from "@/chat/timeline_rows";
import { isActive } from "@/chat/types";
import { Article, messageOf } from "@/features/timeline/article";
import { useAllRows } from "@/features/timeline/deferred_rows";
import { walksFeed } from "@/features/timeline/feed_keys";
import type { TopRow } from "@/features/timeline/prompt_bar";
import { useReadMark } from "@/features/timeline/read_mark";
import { ALL_UP_TO, Heights, keysOf, type MountedKeys, NOT_CHOSEN, rangeOf } from "@/features/timeline/row_heights";
import { useScrollTarget, useSentRows } from "@/features/timeline/scroll_targets";
import { Scroller, type ScrollerState } from "@/features/timeline/scroller";
import { dayKey } from "@/features/timeline/timestamp";
import type { ChatSession } from "@/state/chat_session";
import { useDisplay } from "@/state/queries";
import { useShownStatus } from "@/state/session_hooks";
import { Button } from "@/ui/button";
import { cx } from "@/ui/cx";
import { lazyPart } from "@/ui/lazy_part";
import { Find } from "./find_shortcut";
import { OlderMessages, useLoadOlder } from "./older_messages";
import { Tail } from "./running_step";

// Loaded after the page, because nothing is selected at the start.
const SelectionKeeper = lazyPart(async () => (await import("@/features/timeline/selection_keeper")).SelectionKeeper);

// Loaded right after the page, because it is shown once a prompt has scrolled out.
const PromptBar = lazyPart(async () => (await import("@/features/timeline/prompt_bar")).PromptBar);

/** Chosen: an opened chat stays at its end this long while rows change their height, for example by highlighted code. */
const OPENING_MS = 1500;

// The scroll position of each chat that was open in this tab.
const places = new Map<string, { key: string; offset: number }>();

interface Props {
  session: ChatSession;
  /** The message to scroll to. */
  target: number | null;
  /** The message being edited. Its row and those below are dimmed, because the edit replaces them. */
  dimFrom: number | null;
}

/** Return the rows of a chat. Unchanged rows are the same objects as before. */
export function useRows(session: ChatSession): Row[] {
  const messages = useStore(session.store, (state) => state.data.messages);
  const order = useStore(session.store, (state) => state.data.order);
  const edit = useStore(session.store, (state) => state.pending.find((op) => op.kind === "edit") ?? null);
  // The stored status, not the shown one: a message that is being sent belongs to the next turn.
  const status = useStore(session.store, (state) => state.data.status);
  const { groupTools } = useDisplay();
  const maker = useRef(new RowMaker());
  return useMemo(() => {
    // Messages that an edit replaces are left out. Done here, because a selector must not return a new array.
    const shown = shownOrder({ ...session.store.getState().data, order }, edit ? [edit] : []);
    const held = shown.flatMap((id) => messages.get(id) ?? []);
    const options = { grouped: groupTools, isFailed: status === "error", dayOf: dayKey };
    return maker.current.make(held, isActive(status), options);
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
  const [keys, setKeys] = useState<MountedKeys>(NOT_CHOSEN);
  const isEndSeen = useCallback(() => scroller.current?.isEndSeen ?? true, []);
  // A store of its own: the first row in view changes often, and only the bar of prompts shows it.
  const [top] = useState(() => createStore<TopRow>(() => ({ key: null, first: null })));
  const loaded = useStore(session.store, (state) => state.data.loaded);
  const hasMore = useStore(session.store, (state) => state.data.hasMore);
  const { fullWidth, followAgent } = useDisplay();
  heights.use(rows);
  const [isWhole, mountAll] = useAllRows(loaded, target !== null || places.has(session.id));
  const range = useMemo(
    () => rangeOf(rows, heights, keys, scroller.current?.seen ?? [], isWhole),
    [rows, heights, keys, isWhole],
  );
  const isLong = rows.length > ALL_UP_TO;
  const mountedNow = useRef({ rows, range });

  // Mount the rows around the view if others are mounted. Rows in view are mounted before anything is painted.
  const mountRows = useCallback(
    (isRendering = false) => {
      const element = box.current;
      const inner = list.current;
      const { rows: all, range: mounted } = mountedNow.current;
      if (!element || !inner) return;
      const top = element.getBoundingClientRect().top - inner.getBoundingClientRect().top;
      // A chat that was just opened has only its last rows so far, and the user scrolls up to others.
      if (!isWhole && top < heights.top(mounted.start)) flushSync(mountAll);
      if (!isWhole || all.length <= ALL_UP_TO) return;
      const next = heights.rangeInstead(mounted, top, element.clientHeight);
      if (!next) return;
      const selected = !(document.getSelection()?.isCollapsed ?? true);
      const start = selected ? Math.min(mounted.start, next.start) : next.start;
      const end = selected ? Math.max(mounted.end, next.end) : next.end;
      const mount = () => {
        const wanted = keysOf(all, start, end);
        setKeys((before) => (wanted.start === before.start && wanted.end === before.end ? before : wanted));
      };
      // What is set in a layout effect is rendered before the paint.
      if (next.isBlank && !isRendering) flushSync(mount);
      else mount();
    },
    [heights, isWhole, mountAll],
  );

  useLayoutEffect(() => {
    const element = box.current;
    const end = tail.current;
    const inner = list.current;
    if (!element || !end || !inner) return;
    let shown: View | null = null;
    const offsetOf = (key: string) => {
      const index = heights.indexOf(key);
      return index < 0 ? null : heights.top(index);
    };
    const own = new Scroller(element, inner, end, offsetOf, (state) => {
      const next = viewOf(state);
      if (!shown || !sameView(shown, next)) setView(next);
      shown = next;
      const { key, first } = top.getState();
      if (key !== state.top || first !== state.first) top.setState({ key: state.top, first: state.first });
    });
    scroller.current = own;
    const place = places.get(session.id);
    if (place) own.restorePlace(place);
    return () => {
      const left = own.place();
      if (left) places.set(session.id, left);
      else places.delete(session.id);
    };
  }, [session, top, heights]);

  // Counted from when the rows are there: before that, a slow server or a busy machine would end the opening at the top.
  // biome-ignore lint/correctness/useExhaustiveDependencies: every session has a scroller of its own
  useEffect(() => {
    if (!loaded || !isWhole) return;
    const settle = setTimeout(() => scroller.current?.endOpening(), OPENING_MS);
    return () => clearTimeout(settle);
  }, [session, loaded, isWhole]);

  // Text that the user selects stays where it is, from the first character on.
  useEffect(() => {
    const selected = () => scroller.current?.selected();
    document.addEventListener("selectionchange", selected);
    return () => document.removeEventListener("selectionchange", selected);
  }, []);

  // Keep the scroll position when anything changes its size.
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
      mountRows();
    });
    observer.observe(inner);
    observer.observe(element);
    // Row heights are needed only if some rows are not mounted. Observing each row costs time in every frame.
    if (!isLong) return () => observer.disconnect();
    for (const row of feed.children) observer.observe(row);
    // Only added rows are observed: observing all rows again would cost a layout each time.
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
  }, [heights, isLong, mountRows]);

  // Before the next effect, which mounts the rows around the view: a target that was just mounted is in view then.
  const { showRow, showMessage } = useScrollTarget(session, target, rows, range, scroller, setKeys);

  // Before the next effect as well: the stored row of a sent message takes the place of the sent one there.
  useSentRows(session, scroller, rows, showRow);

  useLayoutEffect(() => {
    mountedNow.current = { rows, range };
    if (isLong) {
      for (const row of list.current?.children ?? []) {
        const { key } = (row as HTMLElement).dataset;
        if (key) heights.set(key, row.getBoundingClientRect().height);
      }
    }
    scroller.current?.changed();
    if (!isWhole) return;
    if (isLong) mountRows(true);
    else setKeys(NOT_CHOSEN);
  }, [rows, range, heights, isLong, isWhole, mountRows]);

  useLoadOlder(session, box);
  useReadMark(session, view.isFar, loaded);

  // biome-ignore lint/correctness/useExhaustiveDependencies: every session has a scroller of its own
  useLayoutEffect(() => {
    if (scroller.current) scroller.current.follows = followAgent;
  }, [session, followAgent]);

  const mounted = useMemo(() => rows.slice(range.start, range.end), [rows, range]);
  const width = fullWidth ? "max-w-none" : "max-w-[48rem]";
  return (
    <div className="relative min-h-0 flex-1">
      <Suspense>
        <PromptBar rows={rows} top={top} onShow={showRow} />
      </Suspense>
      <Find session={session} rows={rows} box={box} onShow={showRow} onShowMessage={showMessage} />
      {/* biome-ignore lint/a11y/noStaticElementInteractions: these events tell scrolling by the user from other scrolling */}
      <div
        ref={box}
        className="h-full overflow-y-auto overscroll-contain bg-bg1 [overflow-anchor:none]"
        onScroll={() => {
          scroller.current?.scrolled();
          mountRows();
        }}
        onWheel={() => scroller.current?.acted()}
        onTouchMove={() => scroller.current?.acted()}
        onPointerDown={() => scroller.current?.acted()}
        onClick={(event) => {
          if (event.target instanceof Element && event.target.closest("[aria-expanded]")) scroller.current?.opened();
        }}
        onKeyDown={(event) => {
          if (/^(Page|Arrow|Home|End|Tab| )/.test(event.key)) scroller.current?.acted();
          if (walksFeed(event.key, event.target)) event.preventDefault();
          if (event.key === "End" && !isField(event.target)) {
            event.preventDefault();
            scroller.current?.follow();
          }
        }}
      >
        <div ref={content} className={cx("mx-auto w-full px-4 pt-6 pb-4", width)}>
          <OlderMessages session={session} />
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
          <Suspense>
            <SelectionKeeper list={list} rows={rows} />
          </Suspense>
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

/** The scroll state that is rendered. It does not change while text grows below the view. */
interface View {
  isFollowing: boolean;
  isBelow: boolean;
  isFar: boolean;
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

/** Return the number of steps that were stored since this was first rendered. */
function useNewSteps(session: ChatSession): number {
  const [last] = useState(() => session.store.getState().data.order.at(-1) ?? 0);
  return useStore(session.store, ({ data }) => {
    let count = 0;
    for (let at = data.order.length - 1; at >= 0; at -= 1) {
      const id = data.order[at] ?? 0;
      if (id <= last) break;
      if (data.messages.get(id)?.role === "assistant") count += 1;
    }
    return count;
  });
}

/** The notice about new content below the view. It is mounted while the user is not at the end. */
function PillText({ session }: { session: ChatSession }) {
  const active = isActive(useShownStatus(session));
  const steps = useNewSteps(session);
  if (steps > 0) return <>{steps === 1 ? "1 new step" : `${steps} new steps`}</>;
  return <>{active ? "New activity below" : "Jump to the end"}</>;
}
