import { patchPreferences } from "@/api/account";
import { sentence } from "@/api/errors";
import type { ModelOverride, PersonalOverride } from "@/api/types.gen";
import { keep } from "@/features/settings/appearance";
import { OwnRecording } from "@/features/settings/debug";
import { CHATS_OWN, chatOverride, chosenModel, subagentOverride } from "@/features/settings/model_overrides";
import { keys, queryClient, useDisplay, useKnownModels, usePreferences } from "@/state/queries";
import { TextField } from "@/ui/field";
import { modKey } from "@/ui/modifier_key";
import { Choices } from "@/ui/radio_choices";
import { Select } from "@/ui/select";
import { Switch } from "@/ui/switch";
import { toast } from "@/ui/toast";
import { Form, Section } from "./settings_form";

/** The page for the behavior of chats, the user's own models, and when chats are summarized. */
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
        <Choices
          label="Sending while the agent works"
          value={display.busySend}
          onChange={(behavior) => keep({ busy_send: behavior })}
          options={[
            {
              value: "queue",
              label: "Queue messages while the agent works",
              hint: `They are sent when the turn is over. ${modKey}-Enter steers instead.`,
            },
            {
              value: "steer",
              label: "Steer the agent while it works",
              hint: `It reads your messages at its next step. ${modKey}-Enter queues instead.`,
            },
          ]}
        />
      </Section>
      <Section title="Reading">
        <Switch
          label="Follow the agent"
          hint="The newest text stays in view until you scroll up. Otherwise your message stays at the top."
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
      <OwnModels />
      <Thresholds />
      <OwnRecording />
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

/** The user's own models, if administrators allow them. */
function OwnModels() {
  const { data } = usePreferences();
  const models = useKnownModels();
  if (!data?.overrides_allowed) return null;
  const named = models.map((one) => ({ value: one.id, label: one.display_name || one.model }));
  const serverChoice = (override: ModelOverride | null) => {
    const name = override && named.find((one) => one.value === override.model_config_id)?.label;
    return { value: "", label: name ? `Server default: ${name}` : "Server default: the chat's own" };
  };
  const { root, general, explore } = data.model_overrides;
  const forSubagents = (override: ModelOverride | null, chosen: PersonalOverride | null) => [
    serverChoice(override),
    // Without a choice of the administrators, it is the same as the server's default.
    ...(override || chosen?.mode === "chat_default" ? [{ value: CHATS_OWN, label: "The chat's own" }] : []),
    ...named,
  ];
  return (
    <Section title="Your models" text="Subagents are agents that a chat starts for parts of its work.">
      <Form
        initial={{ root: chosenModel(root), general: chosenModel(general), explore: chosenModel(explore) }}
        save={async (changed) => {
          const overrides = {
            ...(changed.root === undefined ? {} : { root: chatOverride(changed.root) }),
            ...(changed.general === undefined ? {} : { general: subagentOverride(changed.general) }),
            ...(changed.explore === undefined ? {} : { explore: subagentOverride(changed.explore) }),
          };
          queryClient.setQueryData(keys.preferences, await patchPreferences({ model_overrides: overrides }));
        }}
      >
        {({ values, set, error }) => (
          <>
            <Select
              label="New chats"
              value={values.root}
              onChange={(id) => set("root", id)}
              options={[{ value: "", label: "Server default" }, ...named]}
              error={error("root.model_config_id")}
            />
            <Select
              label="General subagents"
              hint="They do substantial work of their own."
              value={values.general}
              onChange={(id) => set("general", id)}
              options={forSubagents(data.deployment_overrides.general, general)}
              error={error("general.model_config_id")}
            />
            <Select
              label="Explore subagents"
              hint="They look for something and change nothing. A small model is often enough."
              value={values.explore}
              onChange={(id) => set("explore", id)}
              options={forSubagents(data.deployment_overrides.explore, explore)}
              error={error("explore.model_config_id")}
            />
          </>
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
