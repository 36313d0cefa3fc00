import { useQuery } from "@tanstack/react-query";
import { Download } from "lucide-react";
import { useState } from "react";
import { Link } from "react-router";
import { getUsage, usageCsv } from "@/api/admin";
import { sentence } from "@/api/errors";
import type { UsageRow } from "@/api/types.gen";
import { purposeName } from "@/chat/call_purposes";
import { DownloadLink } from "@/ui/download_link";
import { compact, dollars } from "@/ui/money";
import { Notice } from "@/ui/notice";
import { Select } from "@/ui/select";
import { Table } from "./responsive_table";

// Running chats add to the sums.
const REFRESH_MS = 15_000;
const PERIODS = [
  { value: "0", label: "Today" },
  ...[7, 30, 90, 365].map((days) => ({ value: String(days), label: `Last ${days} days` })),
];

interface Props {
  groups: { value: string; label: string }[];
  user?: string;
}

/** A usage report, grouped by the selected field, as a chart and a table. */
export function UsageReport({ groups, user }: Props) {
  const [days, setDays] = useState("30");
  const [group, setGroup] = useState(groups[0]?.value ?? "day");
  // The period starts at midnight, so that the query stays the same and its result can be cached.
  const from = new Date(new Date().setHours(0, 0, 0, 0) - Number(days) * 86_400_000).toISOString();
  const query = { from, group_by: group, ...(user ? { user } : {}) };
  const { data, error } = useQuery({
    queryKey: ["usage", query],
    queryFn: () => getUsage(query),
    refetchInterval: REFRESH_MS,
  });
  const rows = data?.items ?? [];
  return (
    <div className="flex flex-col gap-4">
      <div className="flex flex-wrap items-end gap-3">
        <Select label="Period" value={days} onChange={setDays} options={PERIODS} />
        <Select label="By" value={group} onChange={setGroup} options={groups} />
        <DownloadLink
          path={usageCsv(query)}
          name="usage.csv"
          className="ml-auto inline-flex h-8 items-center gap-1.5 rounded-lg border border-line px-3 font-medium hover:bg-bg3"
        >
          <Download className="size-4" aria-hidden /> CSV
        </DownloadLink>
      </div>
      {error && <Notice kind="error">{sentence(error)}</Notice>}
      {group === "day" && rows.length > 1 && <Bars rows={rows} />}
      <Table
        label="Usage"
        rows={rows}
        keyOf={(row) => row.key}
        empty="No usage in this period."
        columns={[
          {
            title: groups.find((one) => one.value === group)?.label ?? "",
            cell: (row) => <Name row={row} group={group} />,
          },
          { title: "Cost", right: true, cell: (row) => dollars(row.cost_micros) },
          { title: "Requests", right: true, cell: (row) => row.request_count.toLocaleString() },
          { title: "In", right: true, cell: (row) => compact(row.tokens.input) },
          { title: "Cached", right: true, cell: (row) => compact(row.tokens.cache_read) },
          { title: "Out", right: true, cell: (row) => compact(row.tokens.output) },
        ]}
      />
    </div>
  );
}

function Name({ row, group }: { row: UsageRow; group: string }) {
  if (group === "purpose") return purposeName(row.key);
  if (group !== "chat") return row.name ?? row.key;
  if (row.key === "") return <span className="text-muted">Deleted chats</span>;
  return (
    <Link to={`/c/${row.key}`} className="break-words text-accent hover:underline">
      {row.name ?? row.key}
    </Link>
  );
}

/** A bar for each day: its cost, or its tokens if there are no prices. */
function Bars({ rows }: { rows: UsageRow[] }) {
  const hasCost = rows.some((row) => row.cost_micros > 0);
  const amountOf = (row: UsageRow) => (hasCost ? row.cost_micros : row.tokens.input + row.tokens.output);
  const most = Math.max(...rows.map(amountOf), 1);
  const width = 100 / rows.length;
  return (
    <svg viewBox="0 0 100 28" preserveAspectRatio="none" className="h-28 w-full" role="img" aria-label="Usage by day">
      {rows.map((row, index) => {
        const height = Math.max(0.5, (amountOf(row) / most) * 27);
        return (
          <rect
            key={row.key}
            x={index * width + width * 0.1}
            y={28 - height}
            width={width * 0.8}
            height={height}
            fill="var(--accent-color)"
          >
            <title>{`${row.key}: ${hasCost ? dollars(row.cost_micros) : `${compact(amountOf(row))} tokens`}`}</title>
          </rect>
        );
      })}
    </svg>
  );
}
