import { patchPreferences } from "@/api/account";
import { sentence } from "@/api/errors";
import { keep } from "@/features/settings/appearance";
import { Form, Section } from "@/features/settings/form";
import { keys, queryClient, useDisplay, useKnownModels, usePreferences } from "@/state/queries";
import { Choices } from "@/ui/choices";
import { TextField } from "@/ui/field";
import { Select } from "@/ui/select";
import { Switch } from "@/ui/switch";
import { toast } from "@/ui/toast";

/** The page for the behavior of chats, the default model, and when chats are summarized. */
export function Chat() {
  const display = useDisplay();
  return (
    <>
      <Section title="Writing">
        <Switch
          label="Enter sends"
          hint="Off: Enter begins a new line, Ctrl or ⌘ with Enter sends."
          checked={display.enterSends}
          onChange={(on) => keep({ enter_sends: on })}
        />
      </Section>
      <Section title="Reading">
        <Switch
          label="Follow the agent"
          hint="The newest text stays in view while it arrives."
          checked={display.followAgent}
          onChange={(on) => keep({ follow_agent: on })}
        />
        <Switch
          label="Group tool calls"
          hint="Consecutive calls are shown as one line with a summary."
          checked={display.groupTools}
          onChange={(on) => keep({ group_tools: on })}
        />
        <Choices
          label="Reasoning"
          value={display.reasoningMode}
          onChange={(mode) => keep({ reasoning_mode: mode })}
          options={[
            { value: "auto", label: "Reasoning opens while it streams", hint: "Closes when the answer begins." },
            { value: "preview", label: "A few lines of it" },
            { value: "open", label: "Always open" },
            { value: "closed", label: "Always closed" },
          ]}
        />
      </Section>
      <Instructions />
      <DefaultModel />
      <Thresholds />
    </>
  );
}

function Instructions() {
  const { data } = usePreferences();
  if (!data) return null;
  return (
    <Section title="Workspaces">
      <Switch
        label="Keep instructions up to date"
        hint="A turn begins with the instructions and skills the workspace has now. Off: a chat keeps those it began with until you refresh them."
        checked={data.context_auto_refresh}
        onChange={(on) =>
          patchPreferences({ context_auto_refresh: on })
            .then((saved) => queryClient.setQueryData(keys.preferences, saved))
            .catch((error) => toast(sentence(error), { kind: "error" }))
        }
      />
    </Section>
  );
}

function DefaultModel() {
  const { data } = usePreferences();
  const models = useKnownModels();
  if (!data?.overrides_allowed) return null;
  const chosen = data.model_overrides.root?.mode === "model" ? data.model_overrides.root.model_config_id : null;
  return (
    <Section title="Model of new chats">
      <Form
        initial={{ model: chosen ?? "" }}
        save={async ({ model }) => {
          const root = model ? ({ mode: "model", model_config_id: model } as const) : null;
          queryClient.setQueryData(keys.preferences, await patchPreferences({ model_overrides: { root } }));
        }}
      >
        {({ values, set, error }) => (
          <Select
            label="Model"
            value={values.model}
            onChange={(id) => set("model", id)}
            options={[
              { value: "", label: "Server default" },
              ...models.map((one) => ({ value: one.id, label: one.display_name || one.model })),
            ]}
            error={error("model_config_id")}
          />
        )}
      </Form>
    </Section>
  );
}

function Thresholds() {
  const { data } = usePreferences();
  const models = useKnownModels();
  if (!data || models.length === 0) return null;
  const initial = Object.fromEntries(models.map((one) => [one.id, String(data.compaction_thresholds[one.id] ?? "")]));
  return (
    <Section
      title="Summarizing long chats"
      text="A chat is summarized when this percentage of the model's context is used. Empty: the model's setting. 100: never automatically."
    >
      <Form
        initial={initial}
        save={async (changed) => {
          const thresholds = Object.fromEntries(
            Object.entries(changed).map(([id, value]) => [id, value?.trim() ? Number(value) : null]),
          );
          queryClient.setQueryData(keys.preferences, await patchPreferences({ compaction_thresholds: thresholds }));
        }}
      >
        {({ values, set, error }) => (
          <div className="grid gap-3 sm:grid-cols-2">
            {models.map((one) => (
              <TextField
                key={one.id}
                label={one.display_name || one.model}
                inputMode="numeric"
                placeholder="Model default"
                value={values[one.id] ?? ""}
                onChange={(e) => set(one.id, e.target.value)}
                error={error(one.id)}
              />
            ))}
          </div>
        )}
      </Form>
    </Section>
  );
}
