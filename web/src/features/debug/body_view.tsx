import { useMemo, useState } from "react";
import type { Body } from "@/api/debug";
import { bodyKind, headerOf, parsedJson } from "@/chat/debug_texts";
import { JsonView } from "@/features/debug/json_view";
import { CopyButton } from "@/features/timeline/code_block";
import { type ServerEvent, SseReader } from "@/lib/sse";
import { Button } from "@/ui/button";
import { cx } from "@/ui/cx";
import { LongText } from "./recorded_parts";

interface Props {
  body: Body | null;
  headers: Record<string, string>;
  label: string;
}

/** A recorded body: JSON that can be folded, events of a stream as a table, or text. */
export function BodyView({ body, headers, label }: Props) {
  const text = body?.text ?? null;
  const kind = bodyKind(text, body?.encoding === "base64", headerOf(headers, "content-type"));
  const [isRaw, setRaw] = useState(false);
  const json = useMemo(() => (kind === "json" && text !== null ? parsedJson(text) : undefined), [kind, text]);
  const events = useMemo(() => (kind === "events" && text !== null ? eventsOf(text) : []), [kind, text]);
  if (!body) return <p className="text-small text-muted">No body was recorded.</p>;
  if (kind === "none") return <p className="text-small text-muted">The body is empty.</p>;
  const raw = body.text;
  return (
    <div className="flex flex-col gap-1.5">
      <div className="flex flex-wrap items-center gap-2 text-small text-muted">
        <span className="tabular-nums">{bytes(body.size)}</span>
        {body.truncated && <span className="text-warn">Only a part is recorded</span>}
        {kind === "binary" && <span>Not text, shown as base64</span>}
        {kind === "events" && <span>{events.length === 1 ? "1 event" : `${events.length} events`}</span>}
        <span className="flex-1" />
        {(kind === "events" || kind === "json") && (
          <Button size="small" kind="ghost" aria-pressed={isRaw} onClick={() => setRaw(!isRaw)}>
            {isRaw ? (kind === "events" ? "As a table" : "As JSON") : "As text"}
          </Button>
        )}
        <CopyButton text={raw} label={`Copy ${label}`} />
      </div>
      {kind === "json" && !isRaw ? (
        <JsonView value={json} label={label} />
      ) : kind === "events" && !isRaw ? (
        <EventTable events={events} label={label} />
      ) : (
        <div className="rounded-md border border-line bg-bg2 px-3 py-2">
          <LongText text={raw} wanted="" label={label} />
        </div>
      )}
    </div>
  );
}

function bytes(size: number): string {
  if (size < 1024) return `${size} B`;
  return size < 1024 * 1024 ? `${(size / 1024).toFixed(1)} KiB` : `${(size / 1024 / 1024).toFixed(1)} MiB`;
}

function eventsOf(text: string): ServerEvent[] {
  // The blank line completes an event that the recorder or the provider cut.
  return new SseReader().push(`${text}\n\n`);
}

const EVENTS = 200;

function EventTable({ events, label }: { events: readonly ServerEvent[]; label: string }) {
  const [most, setMost] = useState(EVENTS);
  const [open, setOpen] = useState<ReadonlySet<number>>(new Set());
  // Some wires do not name their events.
  const hasNames = useMemo(() => events.some((event) => nameOf(event) !== null), [events]);
  const toggle = (index: number) =>
    setOpen((before) => {
      const next = new Set(before);
      if (!next.delete(index)) next.add(index);
      return next;
    });
  return (
    <div
      role="group"
      tabIndex={0}
      aria-label={label}
      className="max-h-[32rem] overflow-auto rounded-md border border-line -outline-offset-2"
    >
      <table className="w-full table-fixed font-mono text-small">
        <thead className="sticky top-0 bg-bg2 text-left text-muted">
          <tr>
            <th className="w-12 px-2 py-1 text-right font-medium">#</th>
            {hasNames && <th className="w-36 px-2 py-1 font-medium">Event</th>}
            <th className="px-2 py-1 font-medium">Data</th>
          </tr>
        </thead>
        <tbody>
          {events.slice(0, most).map((event, index) => (
            <tr key={index} className="border-t border-line align-top">
              <td className="px-2 py-1 text-right text-muted tabular-nums">{index + 1}</td>
              {hasNames && (
                <td className="truncate px-2 py-1" title={nameOf(event) ?? undefined}>
                  {nameOf(event)}
                </td>
              )}
              <td className="p-0">
                <button
                  type="button"
                  aria-expanded={open.has(index)}
                  onClick={() => toggle(index)}
                  className={cx(
                    "w-full px-2 py-1 text-left hover:bg-bg3",
                    open.has(index) ? "break-words whitespace-pre-wrap" : "truncate",
                  )}
                >
                  {open.has(index) ? pretty(event.data) : event.data.slice(0, 300)}
                </button>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {events.length > most && (
        <Button size="small" className="m-2" onClick={() => setMost(most + 5 * EVENTS)}>
          Show more of {events.length} events
        </Button>
      )}
    </div>
  );
}

/** Return the name of an event, or the type in its data; null if it has neither. */
function nameOf(event: ServerEvent): string | null {
  if (event.event !== "message") return event.event;
  const name = (parsedJson(event.data) as { type?: unknown } | undefined)?.type;
  return typeof name === "string" ? name : null;
}

function pretty(data: string): string {
  const value = parsedJson(data);
  return value === undefined ? data : JSON.stringify(value, null, 2);
}
