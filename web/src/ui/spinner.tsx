import { cx } from "@/ui/cx";
import { turning } from "./endless_animations";

/** A spinner, which does not move for users who prefer reduced motion. Decorative: the text next to it has the meaning. */
export function Spinner({ className }: { className?: string }) {
  return (
    <span
      ref={turning}
      aria-hidden
      className={cx("inline-block size-3.5 shrink-0 rounded-full border-2 border-line border-t-accent", className)}
    />
  );
}
