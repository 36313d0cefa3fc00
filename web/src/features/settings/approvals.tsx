import { patchPreferences } from "@/api/account";
import type { ApprovalSettingsValues, PreferencesChange } from "@/api/types.gen";
import { keys, queryClient, useMe, usePreferences } from "@/state/queries";
import { TextField } from "@/ui/field";
import { Select } from "@/ui/select";
import { Switch } from "@/ui/switch";
import { RulesEditor, readRules, writeRules } from "./approval_rules";
import { Form, Section } from "./settings_form";
import { Group } from "./settings_group";

const ABOUT =
  "A * stands for anything. All rules apply, no matter who wrote them. The strictest matching rule decides: deny, then ask, then allow.";

/** The page for approvals: the user's own rules, and those for all users if the user may see them. */
export function Approvals() {
  const { data: me } = useMe();
  return (
    <>
      <OwnRules />
      {(me?.role === "admin" || me?.role === "auditor") && <ServerRules />}
    </>
  );
}

/** The user's own approval rules. */
function OwnRules() {
  const { data } = usePreferences();
  if (!data) return null;
  return (
    <Section title="Your rules" text={`For tools in all your chats. ${ABOUT}`}>
      <Form
        initial={{ rules: readRules(data.approval_rules) }}
        save={async ({ rules = [] }) => {
          const change = { approval_rules: writeRules(rules) } as PreferencesChange;
          queryClient.setQueryData(keys.preferences, await patchPreferences(change));
        }}
      >
        {({ values, set, error }) => (
          <RulesEditor
            rules={values.rules}
            onChange={(rules) => set("rules", rules)}
            error={error}
            field="approval_rules"
          />
        )}
      </Form>
    </Section>
  );
}

/** The approval rules of the server. */
function ServerRules() {
  return (
    <Section title="Rules for all users" text="These apply in every chat on this server.">
      <Group
        group="approvals"
        read={(values: ApprovalSettingsValues) => ({
          default: values.default ?? "allow",
          rules: readRules(values.rules ?? []),
          allow_always: values.allow_always ?? true,
          timeout_seconds: String(values.timeout_seconds ?? 0),
        })}
        write={({ rules, timeout_seconds, ...changed }) => ({
          ...changed,
          ...(rules ? { rules: writeRules(rules) } : {}),
          ...(timeout_seconds === undefined ? {} : { timeout_seconds: Number(timeout_seconds) }),
        })}
      >
        {({ values, set, error }) => (
          <>
            <Select
              label="Calls that no rule matches"
              value={values.default}
              onChange={(action) => set("default", action as typeof values.default)}
              options={[
                { value: "allow", label: "Run" },
                { value: "ask", label: "Are asked about" },
              ]}
              error={error("default")}
            />
            <RulesEditor rules={values.rules} onChange={(rules) => set("rules", rules)} error={error} />
            <Switch
              label="Users may answer “always”"
              hint="Off: they are asked each time."
              checked={values.allow_always}
              onChange={(on) => set("allow_always", on)}
            />
            <TextField
              label="Wait for an answer"
              hint="Seconds. 0 means no limit."
              inputMode="numeric"
              value={values.timeout_seconds}
              onChange={(e) => set("timeout_seconds", e.target.value)}
              error={error("timeout_seconds")}
            />
          </>
        )}
      </Group>
    </Section>
  );
}
