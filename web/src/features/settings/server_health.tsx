import { useQuery } from "@tanstack/react-query";
import { listJobs, listReplicas } from "@/api/admin";
import { sentence } from "@/api/errors";
import { ownBuild, versionQuery } from "@/state/login_session";
import { driverProblem, useTemplates } from "@/state/templates";
import { Commands } from "@/ui/backtick_code";
import { Notice } from "@/ui/notice";
import { Ago } from "@/ui/relative_time";
import { Table } from "./responsive_table";
import { Section } from "./settings_form";

/** The page with versions, replicas and housekeeping jobs. */
export function Health() {
  const version = useQuery(versionQuery);
  const replicas = useQuery({ queryKey: ["replicas"], queryFn: listReplicas, refetchInterval: 10_000 });
  const jobs = useQuery({ queryKey: ["jobs"], queryFn: listJobs, refetchInterval: 30_000 });
  const error = replicas.error ?? jobs.error;
  return (
    <>
      {error && <Notice kind="error">{sentence(error)}</Notice>}
      <Section title="Version">
        {version.data && (
          <dl className="grid grid-cols-[auto_1fr] gap-x-6 gap-y-1">
            <dt className="text-muted">Rookery</dt>
            <dd>{version.data.version}</dd>
            <dt className="text-muted">Database schema</dt>
            <dd>{version.data.schema}</dd>
            <dt className="text-muted">Web application</dt>
            <dd>
              <code className="font-mono text-small">{ownBuild() || "development"}</code>
            </dd>
          </dl>
        )}
      </Section>
      <WorkspaceHealth />
      <Section title="Replicas">
        <Table
          label="Replicas"
          rows={replicas.data?.items ?? []}
          keyOf={(one) => one.id}
          empty="Loading"
          columns={[
            { title: "Host", cell: (one) => `${one.hostname} (${one.pid})` },
            {
              title: "State",
              cell: (one) => <span className={one.state === "alive" ? "text-ok" : "text-warn"}>{one.state}</span>,
            },
            { title: "Version", cell: (one) => one.version },
            { title: "Chats", right: true, cell: (one) => one.owned_chats },
            { title: "Streams", right: true, cell: (one) => one.streams ?? "?" },
            { title: "Last beat", right: true, cell: (one) => <Ago at={one.heartbeat_at} /> },
          ]}
        />
      </Section>
      <Section title="Housekeeping">
        <Table
          label="Housekeeping"
          rows={jobs.data?.items ?? []}
          keyOf={(one) => one.name}
          empty="Nothing has run yet."
          columns={[
            { title: "Job", cell: (one) => one.name },
            { title: "Last run", cell: (one) => (one.runs[0] ? <Ago at={one.runs[0].finished_at} /> : "Never") },
            { title: "Outcome", cell: (one) => one.runs[0]?.error ?? one.runs[0]?.outcome ?? "" },
            { title: "Removed", right: true, cell: (one) => one.runs[0]?.removed ?? "" },
          ]}
        />
      </Section>
    </>
  );
}

/** Whether the server that answers can start workspaces, and the command that helps if it cannot. */
function WorkspaceHealth() {
  const { data } = useTemplates();
  const problem = driverProblem(data?.items);
  if (!data) return null;
  return (
    <Section title="Workspaces">
      {problem ? (
        <Notice kind="warn">
          <Commands text={problem} />
        </Notice>
      ) : (
        <p className="text-ok">This server can start workspaces.</p>
      )}
    </Section>
  );
}
