import type { ReactNode } from "react";

interface Props<T> {
  label: string;
  rows: T[];
  columns: { title: string; cell: (row: T) => ReactNode; right?: boolean }[];
  keyOf: (row: T) => string;
  empty: string;
}

/** A list with columns, which scrolls in its own box on small screens. */
export function Table<T>({ label, rows, columns, keyOf, empty }: Props<T>) {
  if (rows.length === 0)
    return <p className="rounded-lg border border-dashed border-line p-6 text-center text-muted">{empty}</p>;
  // Relative: words for screen readers are placed by their nearest such box, and would widen the page from here.
  return (
    <section aria-label={label} tabIndex={0} className="relative overflow-x-auto rounded-lg border border-line">
      <table className="w-full text-left">
        <thead className="bg-bg2 text-small text-muted">
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
            <tr key={keyOf(row)}>
              {columns.map((column) => (
                <td
                  key={column.title}
                  className={`px-3 py-2 align-middle ${column.right ? "text-right tabular-nums whitespace-nowrap" : ""}`}
                >
                  {column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
