import type { PeriodKind, SharingSettingsValues, SpendSettingsValues } from "@/api/types.gen";
import { TextField } from "@/ui/field";
import { Select } from "@/ui/select";
import { Switch } from "@/ui/switch";
import { Section } from "./settings_form";
import { Group } from "./settings_group";

/** The spending limit of users, and whether they may share chats. */
export function Limits() {
  return (
    <>
      <Section
        title="Spending"
        text="At the limit, users cannot start new turns, and a running turn ends before its next model call."
      >
        <Group
          group="spend"
          read={(values: SpendSettingsValues) => ({
            enabled: values.enabled ?? false,
            default_limit_micros: String((values.default_limit_micros ?? 0) / 1_000_000),
            period: values.period ?? "month",
          })}
          write={({ default_limit_micros: limit, ...changed }) => ({
            ...changed,
            ...(limit === undefined ? {} : { default_limit_micros: Math.round(Number(limit) * 1_000_000) }),
          })}
        >
          {({ values, set, error }) => (
            <>
              <Switch label="Limit spending" checked={values.enabled} onChange={(on) => set("enabled", on)} />
              <div className="grid gap-4 sm:grid-cols-2">
                <TextField
                  label="Limit per user, in $"
                  inputMode="decimal"
                  hint="0 means no limit. Single users can have another limit, on the page Users."
                  value={values.default_limit_micros}
                  onChange={(e) => set("default_limit_micros", e.target.value)}
                  error={error("default_limit_micros")}
                />
                <Select
                  label="Per"
                  value={values.period}
                  onChange={(period) => set("period", period as PeriodKind)}
                  options={[
                    { value: "day", label: "Day" },
                    { value: "week", label: "Week" },
                    { value: "month", label: "Month" },
                  ]}
                />
              </div>
            </>
          )}
        </Group>
      </Section>
      <Section title="Sharing">
        <Group group="sharing" read={(values: SharingSettingsValues) => ({ enabled: values.enabled ?? true })}>
          {({ values, set }) => (
            <Switch
              label="Users may share chats"
              hint="If off, shared chats are hidden from their readers immediately."
              checked={values.enabled}
              onChange={(on) => set("enabled", on)}
            />
          )}
        </Group>
      </Section>
    </>
  );
}
