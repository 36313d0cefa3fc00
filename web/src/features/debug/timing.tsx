import type { StepSummary } from "@/api/debug";
import { precise, type SegmentKind, type StepTiming, stepTiming } from "@/chat/debug_texts";
import { cx } from "@/ui/cx";

const LOOKS: Record<SegmentKind, string> = {
  preparing: "bg-line",
  waiting: "bg-control",
  answering: "bg-accent",
  failed: "bg-danger",
  pause: "bg-[repeating-linear-gradient(135deg,var(--control)_0_1px,transparent_1px_4px)]",
};
const NAMES: Record<SegmentKind, string> = {
  preparing: "Before the request",
  failed: "Failed attempts",
  pause: "Pause before a retry",
  waiting: "Until the first byte",
  answering: "Answer",
};

function sums({ segments }: StepTiming): [SegmentKind, number][] {
  return (Object.keys(NAMES) as SegmentKind[]).flatMap((kind): [SegmentKind, number][] => {
    const ms = segments.filter((one) => one.kind === kind).reduce((sum, one) => sum + one.ms, 0);
    return ms > 0 ? [[kind, ms]] : [];
  });
}

/** The bar of a step. `longest` is the time that takes the whole width. */
export function TimingBar({ timing, longest, className }: { timing: StepTiming; longest: number; className?: string }) {
  const whole = Math.max(longest, timing.totalMs, 1);
  const words = sums(timing).map(([kind, ms]) => `${NAMES[kind]} ${precise(ms)}`);
  return (
    <span
      role="img"
      aria-label={words.length > 0 ? `Time: ${words.join(", ")}` : "Time: not known yet"}
      className={cx("relative block h-2 overflow-hidden rounded-full bg-bg3", className)}
    >
      {timing.segments.map((one) => (
        <span
          key={`${one.kind} ${one.fromMs}`}
          className={cx("absolute inset-y-0 min-w-0.5", LOOKS[one.kind])}
          style={{ left: `${(100 * one.fromMs) / whole}%`, width: `${(100 * one.ms) / whole}%` }}
        />
      ))}
    </span>
  );
}

/** The time of one step: a bar, and what its parts are. */
export function StepTime({ step, now }: { step: StepSummary; now: number }) {
  const timing = stepTiming(step, now);
  const parts = sums(timing);
  if (parts.length === 0) return null;
  return (
    <div>
      <TimingBar timing={timing} longest={0} className="h-3" />
      <ul className="mt-1.5 flex flex-wrap gap-x-4 gap-y-1 text-small text-muted tabular-nums">
        {parts.map(([kind, ms]) => (
          <li key={kind} className="flex items-center gap-1.5">
            <span aria-hidden className={cx("size-2.5 rounded-xs", LOOKS[kind])} />
            {NAMES[kind]} {precise(ms)}
          </li>
        ))}
        {step.ttft_ms !== null && <li>First token after {precise(step.ttft_ms)}</li>}
      </ul>
    </div>
  );
}
