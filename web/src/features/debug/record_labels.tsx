/** Small pieces that all views of debug records share. */
import { CircleAlert, CircleCheck, CircleStop } from "lucide-react";
import { Fragment, type ReactNode } from "react";
import type { RecordStatus, Usage } from "@/api/debug";
import { promptTokens, statusName } from "@/chat/debug_texts";
import { cx } from "@/ui/cx";
import { compact } from "@/ui/money";
import { Spinner } from "@/ui/spinner";

/** The status of a run or step as an icon with a name. */
export function StatusMark({ status }: { status: RecordStatus }) {
  const name = statusName(status);
  switch (status) {
    case "in_progress":
      return (
        <span role="img" aria-label={name} className="flex size-4 shrink-0 items-center justify-center">
          <Spinner />
        </span>
      );
    case "completed":
      return <CircleCheck role="img" aria-label={name} className="size-4 shrink-0 text-ok" />;
    case "error":
      return <CircleAlert role="img" aria-label={name} className="size-4 shrink-0 text-danger" />;
    default:
      return <CircleStop role="img" aria-label={name} className="size-4 shrink-0 text-muted" />;
  }
}

/** Figures in one line, with dots between them. */
export function Figures({ items, className }: { items: ReactNode[]; className?: string }) {
  const shown = items.filter((item) => item !== null && item !== undefined && item !== false && item !== "");
  return (
    <span className={cx("text-small text-muted tabular-nums", className)}>
      {shown.map((item, index) => (
        <Fragment key={index}>
          {index > 0 && <span aria-hidden> · </span>}
          {item}
        </Fragment>
      ))}
    </span>
  );
}

/** Return the tokens of a call: `41k in (38k cached), 1.2k out`. Null if the provider reported none. */
export function tokenWords(usage: Usage | null): string | null {
  const input = promptTokens(usage);
  const output = usage?.output_tokens ?? 0;
  if (input + output === 0) return null;
  const cached = usage?.cache_read_tokens ?? 0;
  return `${compact(input)} in${cached > 0 ? ` (${compact(cached)} cached)` : ""}, ${compact(output)} out`;
}

/** A text with the searched words marked. */
export function Marked({ text, wanted }: { text: string; wanted: string }) {
  if (!wanted) return text;
  const pieces: ReactNode[] = [];
  const low = text.toLowerCase();
  const word = wanted.toLowerCase();
  let from = 0;
  for (let at = low.indexOf(word); at >= 0 && pieces.length < 400; at = low.indexOf(word, from)) {
    pieces.push(text.slice(from, at));
    from = at + word.length;
    pieces.push(
      <mark key={at} className="rounded-xs bg-mark text-text">
        {text.slice(at, from)}
      </mark>,
    );
  }
  return [...pieces, text.slice(from)];
}

/** A named value, in a grid of two columns. */
export function Fact({ name, children }: { name: string; children: ReactNode }) {
  return (
    <>
      <dt className="text-muted">{name}</dt>
      <dd className="min-w-0 break-words">{children}</dd>
    </>
  );
}
