import type { ReactNode } from "react";
import { cx } from "@/ui/cx";

interface Props<T> {
  label: string;
  rows: T[];
  columns: { title: string; cell: (row: T) => ReactNode; right?: boolean }[];
  keyOf: (row: T) => string;
  empty: string;
}

/** A table. On small screens each row is a card of names and values. */
export function Table<T>({ label, rows, columns, keyOf, empty }: Props<T>) {
  if (rows.length === 0)
    return <p className="rounded-lg border border-dashed border-line p-6 text-center text-muted">{empty}</p>;
  // Positioned, so that hidden text for screen readers does not widen the page.
  return (
    <section aria-label={label} tabIndex={0} className="relative overflow-x-auto rounded-lg border border-line">
      <table className="w-full text-left max-sm:table-fixed">
        <thead className="bg-bg2 text-small text-muted max-sm:sr-only">
          <tr>
            {columns.map((column) => (
              <th
                key={column.title}
                scope="col"
                className={`px-3 py-2 font-medium ${column.right ? "text-right" : ""}`}
              >
                {column.title || <span className="sr-only">Actions</span>}
              </th>
            ))}
          </tr>
        </thead>
        <tbody className="divide-y divide-line">
          {rows.map((row) => (
            <tr key={keyOf(row)} className="max-sm:block max-sm:py-1.5">
              {columns.map((column) => (
                <td
                  key={column.title}
                  data-title={column.title}
                  className={cx(
                    "px-3 py-2 align-middle max-sm:flex max-sm:items-center max-sm:justify-between max-sm:gap-4 max-sm:py-1 max-sm:has-[>div:empty]:hidden",
                    "max-sm:before:shrink-0 max-sm:before:text-small max-sm:before:text-muted max-sm:before:content-[attr(data-title)]",
                    column.right && "text-right tabular-nums sm:whitespace-nowrap",
                  )}
                >
                  <div className="sm:contents max-sm:min-w-0 max-sm:[overflow-wrap:anywhere]">{column.cell(row)}</div>
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
