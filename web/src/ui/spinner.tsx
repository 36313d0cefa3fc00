import { cx } from "@/ui/cx";
import { turning } from "@/ui/motion";

/** A turning ring; a still one for people who asked for less motion. Decoration: the words beside it say what runs. */
export function Spinner({ className }: { className?: string }) {
  return (
    <span
      ref={turning}
      aria-hidden
      className={cx("inline-block size-3.5 shrink-0 rounded-full border-2 border-line border-t-accent", className)}
    />
  );
}
