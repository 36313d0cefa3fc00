import { useInfiniteQuery } from "@tanstack/react-query";
import { Download } from "lucide-react";
import { useState } from "react";
import { auditCsv, listAudit } from "@/api/admin";
import { sentence } from "@/api/errors";
import { Button } from "@/ui/button";
import { useDebounced } from "@/ui/debounced";
import { DownloadLink } from "@/ui/download_link";
import { TextField } from "@/ui/field";
import { Notice } from "@/ui/notice";
import { Moment } from "@/ui/relative_time";
import { Table } from "./responsive_table";
import { Section } from "./settings_form";

/** The audit log. */
export function Audit() {
  const [typed, setTyped] = useState("");
  const action = useDebounced(typed.trim(), 300);
  const list = useInfiniteQuery({
    queryKey: ["audit", action],
    queryFn: ({ pageParam }) =>
      listAudit({ ...(action ? { action } : {}), ...(pageParam ? { cursor: pageParam } : {}) }),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    retry: false,
  });
  const entries = list.data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <Section>
      <div className="flex flex-wrap items-end gap-3">
        <TextField
          label="Action"
          type="search"
          placeholder="user.create"
          className="min-w-48 flex-1"
          value={typed}
          onChange={(event) => setTyped(event.target.value)}
        />
        <DownloadLink
          path={auditCsv()}
          name="audit.csv"
          className="inline-flex h-8 items-center gap-1.5 rounded-lg border border-line px-3 font-medium hover:bg-bg3"
        >
          <Download className="size-4" aria-hidden /> CSV
        </DownloadLink>
      </div>
      {list.error && <Notice kind="error">{sentence(list.error)}</Notice>}
      <Table
        label="Audit log"
        rows={entries}
        keyOf={(one) => String(one.id)}
        empty="No entries."
        columns={[
          { title: "When", cell: (one) => <Moment at={one.at} /> },
          { title: "Who", cell: (one) => one.actor_label },
          { title: "Action", cell: (one) => <code className="font-mono text-small">{one.action}</code> },
          {
            title: "On",
            cell: (one) => (
              <span className="text-muted">
                {one.resource_type} {one.resource_id?.slice(0, 8)}
              </span>
            ),
          },
          {
            title: "Outcome",
            cell: (one) => (one.outcome === "refused" ? <span className="text-danger">refused</span> : "done"),
          },
        ]}
      />
      {list.hasNextPage && (
        <Button className="self-start" onClick={() => list.fetchNextPage()}>
          More
        </Button>
      )}
    </Section>
  );
}
