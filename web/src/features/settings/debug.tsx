import type { DebugSettingsValues } from "@/api/types.gen";
import { Section } from "@/features/settings/form";
import { Group } from "@/features/settings/group";
import { TextField } from "@/ui/field";
import { Switch } from "@/ui/switch";

/** The page for the policy of debug records: who may record, and for how long records are kept. */
export function Debug() {
  return (
    <Section text="Debug records show what a model was sent and what it returned. They can contain sensitive text from prompts, files and answers. Keys and passwords are removed.">
      <Group
        group="debug"
        read={(values: DebugSettingsValues) => ({
          allow_users: values.allow_users ?? false,
          record_on_error: values.record_on_error ?? true,
          retention_days: String(values.retention_days ?? 30),
        })}
        write={({ retention_days, ...rest }) => ({
          ...rest,
          ...(retention_days === undefined ? {} : { retention_days: Number(retention_days) }),
        })}
      >
        {({ values, set, error }) => (
          <>
            <Switch
              label="Users may record their chats"
              hint="Off: nothing is recorded, except failed turns if they are kept."
              checked={values.allow_users}
              onChange={(on) => set("allow_users", on)}
            />
            <Switch
              label="Keep the records of failed turns"
              hint="A turn that ends with an error is recorded even if its chat is not."
              checked={values.record_on_error}
              onChange={(on) => set("record_on_error", on)}
            />
            <TextField
              label="Delete records after"
              hint="Days. 0 keeps them until their chat is archived or deleted."
              inputMode="numeric"
              value={values.retention_days}
              onChange={(event) => set("retention_days", event.target.value)}
              error={error("retention_days")}
            />
          </>
        )}
      </Group>
    </Section>
  );
}
