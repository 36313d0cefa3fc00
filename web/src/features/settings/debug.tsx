import { useQuery } from "@tanstack/react-query";
import { patchPreferences } from "@/api/account";
import { getGroup } from "@/api/admin";
import { sentence } from "@/api/errors";
import type { DebugSettingsValues, GroupViewOfDebugSettingsValues } from "@/api/types.gen";
import { useFeature } from "@/state/login_session";
import { keys, queryClient, usePreferences } from "@/state/queries";
import { TextField } from "@/ui/field";
import { Notice } from "@/ui/notice";
import { Switch } from "@/ui/switch";
import { toast } from "@/ui/toast";
import { Section } from "./settings_form";
import { Group } from "./settings_group";

/** Return the policy of debug records. Members can read it as well. */
function usePolicy(): DebugSettingsValues | undefined {
  const isOffered = useFeature("debug");
  const { data } = useQuery({
    queryKey: ["settings", "debug"],
    queryFn: () => getGroup<GroupViewOfDebugSettingsValues>("debug"),
    enabled: isOffered,
  });
  return data?.values;
}

/** The user's own switch for recording. Hidden if the server does not let users record. */
export function OwnRecording() {
  const policy = usePolicy();
  const { data } = usePreferences();
  if (!data || !(policy?.allow_users || policy?.forced)) return null;
  const set = (on: boolean) =>
    patchPreferences({ debug: on })
      .then((saved) => queryClient.setQueryData(keys.preferences, saved))
      .catch((error: unknown) => toast(sentence(error), { kind: "error" }));
  return (
    <Section title="Debug records">
      <Switch
        label="Record model calls"
        hint={
          policy.forced
            ? "The operator of this server records all chats. It cannot be changed here."
            : "The Debug tab of your chats shows what the model was sent. Each chat can have its own setting. Records can contain sensitive text."
        }
        checked={data.debug || (policy.forced ?? false)}
        disabled={policy.forced ?? false}
        onChange={(on) => void set(on)}
      />
    </Section>
  );
}

/** The page for the policy of debug records: who may record, and for how long records are kept. */
export function Debug() {
  const policy = usePolicy();
  return (
    <Section text="Debug records show what a model was sent and what it returned. They can contain sensitive text from prompts, files and answers. Keys and passwords are removed.">
      {policy?.forced && (
        <Notice>
          The start setting <code>debug_force</code> is on, so all chats are recorded. The switches below have no
          effect.
        </Notice>
      )}
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
              hint="If this is off, only failed turns are recorded, and only if the next switch is on."
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
