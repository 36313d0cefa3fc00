import type { WorkspaceSettingsValues } from "@/api/types.gen";
import { Templates } from "@/features/settings/own_workspaces";
import { TextField } from "@/ui/field";
import { Section } from "./settings_form";
import { Group } from "./settings_group";

const FIELDS = {
  max_per_user: ["Workspaces per user", "0 is no limit."],
  max_running_per_user: ["Running workspaces per user", "0 is no limit."],
  max_running_per_node: ["Running workspaces per machine", "0 is no limit."],
  max_idle_minutes: [
    "Stop an idle workspace after",
    "Minutes. Templates cannot set a longer time. 0 is no limit: a workspace stops only after the time that its template sets.",
  ],
  delete_after_stopped_days: ["Delete a stopped workspace after", "Days. 0 means never."],
} as const;
type Name = keyof typeof FIELDS;
const NAMES = Object.keys(FIELDS) as Name[];

/** The limits on workspaces, and their idle and retention periods. */
export function Workspaces() {
  return (
    <>
      <Templates />
      <Section title="Quotas and idle times">
        <Group
          group="workspaces"
          read={(values: WorkspaceSettingsValues) =>
            Object.fromEntries(NAMES.map((name) => [name, String(values[name] ?? 0)])) as Record<Name, string>
          }
          write={(changed) => Object.fromEntries(Object.entries(changed).map(([name, value]) => [name, Number(value)]))}
        >
          {({ values, set, error }) =>
            NAMES.map((name) => (
              <TextField
                key={name}
                label={FIELDS[name][0]}
                hint={FIELDS[name][1]}
                inputMode="numeric"
                value={values[name]}
                onChange={(e) => set(name, e.target.value)}
                error={error(name)}
              />
            ))
          }
        </Group>
      </Section>
    </>
  );
}
