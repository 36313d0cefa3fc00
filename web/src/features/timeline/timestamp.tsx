import { cx } from "@/ui/cx";

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const WHOLE = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });
const DAY = new Intl.DateTimeFormat(undefined, { weekday: "long", day: "numeric", month: "long", year: "numeric" });

/** A time such as `14:02`, with date and time zone in a tooltip. */
export function When({ at, className }: { at: string; className?: string }) {
  const date = new Date(at);
  if (Number.isNaN(date.getTime())) return null;
  return (
    <time dateTime={at} title={WHOLE.format(date)} className={cx("text-small text-muted tabular-nums", className)}>
      {CLOCK.format(date)}
    </time>
  );
}

export function dayKey(at: string): string {
  const date = new Date(at);
  return `${date.getFullYear()}-${date.getMonth() + 1}-${date.getDate()}`;
}

export function dayName(at: string, now = new Date()): string {
  const date = new Date(at);
  if (dayKey(at) === dayKey(now.toISOString())) return "Today";
  const yesterday = new Date(now);
  yesterday.setDate(now.getDate() - 1);
  return dayKey(at) === dayKey(yesterday.toISOString()) ? "Yesterday" : DAY.format(date);
}
