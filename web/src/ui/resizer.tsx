import { type KeyboardEvent, type PointerEvent, useRef } from "react";
import { cx } from "@/ui/cx";

interface Props {
  label: string;
  value: number;
  min: number;
  max: number;
  /** The size that a double click restores. */
  initial: number;
  onChange: (value: number) => void;
  /** Whether the pane is to the right of the handle. */
  reversed?: boolean;
  className?: string;
}

const STEP = 16;

/** The handle between two panes. It can be dragged or moved with the arrow keys. */
export function Resizer({ label, value, min, max, initial, onChange, reversed, className }: Props) {
  const start = useRef({ x: 0, value: 0 });
  const set = (next: number) => onChange(Math.round(Math.min(max, Math.max(min, next))));
  const sign = reversed ? -1 : 1;

  function onPointerDown(event: PointerEvent<HTMLDivElement>) {
    start.current = { x: event.clientX, value };
    event.currentTarget.setPointerCapture(event.pointerId);
  }

  function onPointerMove(event: PointerEvent<HTMLDivElement>) {
    if (!event.currentTarget.hasPointerCapture(event.pointerId)) return;
    set(start.current.value + sign * (event.clientX - start.current.x));
  }

  function onKeyDown(event: KeyboardEvent) {
    const by = { ArrowLeft: -STEP, ArrowRight: STEP }[event.key];
    if (by !== undefined) set(value + sign * by);
    else if (event.key === "Home") set(min);
    else if (event.key === "End") set(max);
    else return;
    event.preventDefault();
  }

  return (
    <div
      role="separator"
      aria-orientation="vertical"
      aria-label={label}
      aria-valuenow={value}
      aria-valuemin={min}
      aria-valuemax={max}
      tabIndex={0}
      onPointerDown={onPointerDown}
      onPointerMove={onPointerMove}
      onKeyDown={onKeyDown}
      onDoubleClick={() => onChange(initial)}
      className={cx(
        "relative z-10 -mx-1 w-2 shrink-0 cursor-col-resize touch-none bg-transparent hover:bg-accent/30 focus-visible:bg-accent/50",
        className,
      )}
    />
  );
}
