import { useQuery } from "@tanstack/react-query";
import { countAffected } from "@/api/admin";
import type { AdminAccess, AuditSettingsValues, ChatSettingsValues } from "@/api/types.gen";
import { useDebounced } from "@/ui/debounced";
import { TextField } from "@/ui/field";
import { Select } from "@/ui/select";
import { Section } from "./settings_form";
import { Group } from "./settings_group";

const NUMBERS = {
  auto_archive_days: ["Archive inactive chats after", "Days. 0 means never."],
  retention_days: ["Delete archived chats after", "Days. 0 means never."],
  running_roots: [
    "Chats that may run at the same time",
    "For all users together. A quarter is reserved for users without a running chat. 0 means no limit.",
  ],
  running_subagents: [
    "Subagents that may run at the same time",
    "For all users together, shared in the same way. 0 means no limit.",
  ],
  max_file_mib_per_user: ["Size of all files of one user", "MiB. 0 means no limit."],
  dynamic_tool_timeout_seconds: ["Wait for results of a client's tools", "Seconds, 10 to 86,400."],
  repeat_notice_after: [
    "Tell the agent that it repeats itself after",
    "Equal calls with the same result. 0 means never.",
  ],
  repeat_ask_after: [
    "Ask the user before an agent repeats itself again at",
    "The number of the equal call that waits for the user, 3 or more. 0 means never.",
  ],
} as const;
type Name = keyof typeof NUMBERS;
type Counted = "auto_archive_days" | "retention_days";

const isCounted = (name: Name): name is Counted => name === "auto_archive_days" || name === "retention_days";
const WAIT_MS = 300;
const MANY = 1_000;

/** The number of chats that the entered period would affect now. */
function Affected({ name, days }: { name: Counted; days: string }) {
  const wanted = useDebounced(days, WAIT_MS);
  const isNumber = /^\d{1,4}$/.test(wanted) && Number(wanted) > 0;
  const { data } = useQuery({
    queryKey: ["affected", name, wanted],
    queryFn: () => countAffected({ [name]: Number(wanted) }),
    enabled: isNumber,
    retry: false,
  });
  if (!data || !isNumber) return null;
  const count = name === "auto_archive_days" ? data.auto_archive : data.retention;
  const chats = `${count >= MANY ? `${MANY} or more` : count} ${count === 1 ? "chat" : "chats"}`;
  return <span aria-live="polite">Would affect {chats} now.</span>;
}

/** The page for retention periods and limits on running chats. */
export function Retention() {
  return (
    <>
      <Section title="Chats">
        <Group
          group="chats"
          read={(values: ChatSettingsValues) => ({
            auto_archive_days: String(values.auto_archive_days ?? 0),
            retention_days: String(values.retention_days ?? 0),
            running_roots: String(values.running_roots ?? 0),
            running_subagents: String(values.running_subagents ?? 0),
            max_file_mib_per_user: String(values.max_file_mib_per_user ?? 0),
            dynamic_tool_timeout_seconds: String(values.dynamic_tool_timeout_seconds ?? 300),
            repeat_notice_after: String(values.repeat_notice_after ?? 3),
            repeat_ask_after: String(values.repeat_ask_after ?? 6),
            admin_access: values.admin_access ?? "break_glass",
          })}
          write={(changed) =>
            Object.fromEntries(
              Object.entries(changed).map(([name, value]) => [name, name in NUMBERS ? Number(value) : value]),
            )
          }
        >
          {({ values, set, error }) => (
            <>
              {(Object.keys(NUMBERS) as Name[]).map((name) => (
                <TextField
                  key={name}
                  label={NUMBERS[name][0]}
                  hint={
                    <>
                      {NUMBERS[name][1]} {isCounted(name) && <Affected name={name} days={values[name]} />}
                    </>
                  }
                  inputMode="numeric"
                  value={values[name]}
                  onChange={(e) => set(name, e.target.value)}
                  error={error(name)}
                />
              ))}
              <Select
                label="Administrators may read chats of others"
                value={values.admin_access}
                onChange={(access) => set("admin_access", access as AdminAccess)}
                options={[
                  { value: "none", label: "Never" },
                  { value: "break_glass", label: "With a reason that the owner sees" },
                  { value: "full", label: "Freely" },
                ]}
              />
            </>
          )}
        </Group>
      </Section>
      <Section title="Audit log">
        <Group
          group="audit"
          read={(values: AuditSettingsValues) => ({ retention_days: String(values.retention_days ?? 365) })}
          write={(changed) => ({ retention_days: Number(changed.retention_days) })}
        >
          {({ values, set, error }) => (
            <TextField
              label="Keep entries for"
              hint="Days. 0 keeps them forever."
              inputMode="numeric"
              value={values.retention_days}
              onChange={(e) => set("retention_days", e.target.value)}
              error={error("retention_days")}
            />
          )}
        </Group>
      </Section>
    </>
  );
}
