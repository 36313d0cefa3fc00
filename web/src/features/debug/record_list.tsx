import { useVirtualizer } from "@tanstack/react-virtual";
import {
  type KeyboardEvent,
  type ReactNode,
  type Ref,
  useEffect,
  useId,
  useImperativeHandle,
  useRef,
  useState,
} from "react";
import { cx } from "@/ui/cx";

export interface RecordListHandle {
  focus: () => void;
  isVisible: () => boolean;
}

interface Props<T> {
  label: string;
  items: readonly T[];
  keyOf: (item: T) => string;
  rowPx: number;
  /** The key of the item that is shown beside the list. */
  current: string | null;
  onOpen: (item: T) => void;
  render: (item: T) => ReactNode;
  handle?: Ref<RecordListHandle>;
}

const PAGE_ROWS = 8;

/** A list of records. Only visible rows are mounted. It is one tab stop; arrow keys move in it, and Enter opens a row. */
export function RecordList<T>({ label, items, keyOf, rowPx, current, onOpen, render, handle }: Props<T>) {
  const id = useId();
  const box = useRef<HTMLDivElement>(null);
  const list = useVirtualizer({
    count: items.length,
    getScrollElement: () => box.current,
    estimateSize: () => rowPx,
    overscan: 10,
  });
  const shown = items.findIndex((item) => keyOf(item) === current);
  // The row that the keys moved to, by its key: rows are added while a run goes on.
  const [moved, setMoved] = useState<string | null>(null);
  const found = items.findIndex((item) => keyOf(item) === moved);
  const active = found >= 0 ? found : Math.max(0, shown);
  useImperativeHandle(handle, () => ({
    focus: () => box.current?.focus({ preventScroll: true }),
    isVisible: () => (box.current?.offsetParent ?? null) !== null,
  }));
  // biome-ignore lint/correctness/useExhaustiveDependencies: only another record scrolls the list, not a longer list
  useEffect(() => {
    if (shown >= 0) list.scrollToIndex(shown, { align: "auto" });
  }, [current]);

  function onKeyDown(event: KeyboardEvent) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const last = items.length - 1;
    const moves: Record<string, number> = {
      ArrowDown: Math.min(last, active + 1),
      ArrowUp: Math.max(0, active - 1),
      PageDown: Math.min(last, active + PAGE_ROWS),
      PageUp: Math.max(0, active - PAGE_ROWS),
      Home: 0,
      End: last,
    };
    const next = moves[event.key];
    const item = items[next ?? active];
    if (!item) return;
    if (next !== undefined) {
      event.preventDefault();
      setMoved(keyOf(item));
      list.scrollToIndex(next, { align: "auto" });
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      onOpen(item);
    }
  }

  return (
    <div
      ref={box}
      role="listbox"
      aria-label={label}
      tabIndex={0}
      aria-activedescendant={items.length > 0 ? `${id}-${active}` : undefined}
      onKeyDown={onKeyDown}
      className="group/list min-h-0 flex-1 overflow-y-auto -outline-offset-2"
    >
      <div role="presentation" className="relative w-full" style={{ height: list.getTotalSize() }}>
        {list.getVirtualItems().map((row) => {
          const item = items[row.index];
          if (!item) return null;
          return (
            // biome-ignore lint/a11y/useKeyWithClickEvents: the list handles the keys
            <div
              key={row.key}
              id={`${id}-${row.index}`}
              role="option"
              tabIndex={-1}
              aria-selected={row.index === shown}
              aria-posinset={row.index + 1}
              aria-setsize={items.length}
              onClick={() => {
                setMoved(keyOf(item));
                onOpen(item);
              }}
              style={{ height: rowPx, transform: `translateY(${row.start}px)` }}
              className={cx(
                "absolute inset-x-0 top-0 cursor-pointer overflow-hidden border-b border-line px-3 outline-none hover:bg-bg2",
                row.index === shown && "bg-bg3 hover:bg-bg3",
                row.index === active && "group-focus-visible/list:shadow-[inset_3px_0_0_var(--accent-color)]",
              )}
            >
              {render(item)}
            </div>
          );
        })}
      </div>
    </div>
  );
}
