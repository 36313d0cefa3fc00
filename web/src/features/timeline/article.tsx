import { Component, memo, type ReactNode } from "react";
import { plainText } from "@/chat/pending_operations";
import type { Row } from "@/chat/timeline_rows";
import { RowView } from "@/features/timeline/row";
import { Button } from "@/ui/button";
import { copyText } from "@/ui/clipboard";
import { cx } from "@/ui/cx";

/** Return the id of the message to which a row belongs; 0 if it belongs to none. */
export function messageOf(row: Row): number {
  return Number(/^m(\d+)/.exec(row.key)?.[1] ?? 0);
}

function headingOf(row: Row): string | null {
  if (row.kind === "user") return `You: ${plainText(row.message.content).slice(0, 60)}`;
  return null;
}

/**
 * One row as an article of the feed. `of` is the number of rows, or -1 while older messages are not loaded. User rows
 * have a hidden heading, so that screen readers can jump between them.
 */
export const Article = memo(function Article({
  row,
  dim,
  place,
  of,
}: {
  row: Row;
  dim: boolean;
  place: number;
  of: number;
}) {
  const heading = headingOf(row);
  return (
    <article
      tabIndex={-1}
      aria-posinset={place}
      aria-setsize={of}
      data-key={row.key}
      data-kind={row.kind}
      className={cx("pb-3", dim && "pointer-events-none opacity-40", row.kind === "user" && "pt-3")}
      inert={dim}
    >
      {/* The positioned parent keeps the hidden heading with its row when the feed scrolls. */}
      {heading && (
        <div className="relative">
          <h2 className="sr-only">{heading}</h2>
        </div>
      )}
      <RowBoundary row={row}>
        <RowView row={row} />
      </RowBoundary>
    </article>
  );
});

/** If a row fails to render, an error is shown in its place, and other rows are not affected. */
export class RowBoundary extends Component<{ row: Row; children: ReactNode }, { failed: boolean }> {
  override state = { failed: false };
  static getDerivedStateFromError() {
    return { failed: true };
  }
  override render() {
    if (!this.state.failed) return this.props.children;
    return (
      <p className="flex items-center gap-2 rounded-lg bg-bg2 px-3 py-2 text-small text-muted">
        Could not show this.
        <Button size="small" onClick={() => void copyText(JSON.stringify(this.props.row))}>
          Copy raw content
        </Button>
      </p>
    );
  }
}
