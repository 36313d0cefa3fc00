import { useEffect, useState } from "react";
import { cx } from "@/ui/cx";

const UNITS: [number, Intl.RelativeTimeFormatUnit][] = [
  [60, "second"],
  [60, "minute"],
  [24, "hour"],
  [7, "day"],
  [4.35, "week"],
  [12, "month"],
  [Number.POSITIVE_INFINITY, "year"],
];

// Created once, because creating a formatter is slow.
const AGO = new Intl.RelativeTimeFormat(undefined, { numeric: "auto", style: "narrow" });
const EXACT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
const SHORT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

/** Return a relative time such as `3 min ago`, in the user's language. */
export function relative(at: Date, now: Date): string {
  let value = (at.getTime() - now.getTime()) / 1000;
  if (Math.abs(value) < 60) return "now";
  for (const [size, unit] of UNITS) {
    if (Math.abs(Math.round(value)) < size) return AGO.format(Math.round(value), unit);
    value /= size;
  }
  return AGO.format(Math.round(value), "year");
}

/** Return an absolute time such as `14 May 2026, 14:02:07 CEST`. */
export function absolute(at: Date): string {
  return Number.isNaN(at.getTime()) ? "" : EXACT.format(at);
}

/** Return a date and time without seconds; the text itself if it is not a time. */
export function shortTime(at: string): string {
  const when = new Date(at);
  return Number.isNaN(when.getTime()) ? at : SHORT.format(when);
}

/** Return the current time, updated every `ms`. */
export function useNow(ms = 30_000): Date {
  const [now, setNow] = useState(() => new Date());
  useEffect(() => {
    const timer = setInterval(() => setNow(new Date()), ms);
    return () => clearInterval(timer);
  }, [ms]);
  return now;
}

/** A relative time, with the exact time in a tooltip. */
export function Ago({ at, className }: { at: string; className?: string }) {
  const now = useNow();
  const when = new Date(at);
  return (
    <time dateTime={at} title={absolute(when)} className={cx("whitespace-nowrap", className)}>
      {relative(when, now)}
    </time>
  );
}

/** A date and time. */
export function Moment({ at }: { at: string | null | undefined }) {
  if (!at) return <span className="text-muted">never</span>;
  return (
    <time dateTime={at} title={absolute(new Date(at))} className="whitespace-nowrap">
      {shortTime(at)}
    </time>
  );
}
