import type { ModelSettingsValues, OverrideView, PromptSettingsValues } from "@/api/types.gen";
import { Section } from "@/features/settings/form";
import { Group } from "@/features/settings/group";
import { useKnownModels } from "@/state/queries";
import { TextArea } from "@/ui/field";
import { Select } from "@/ui/select";
import { Switch } from "@/ui/switch";

/** The prompt that all agents get, and the models that do other work than answering. */
export function Agent() {
  return (
    <>
      <Prompts />
      <Helpers />
    </>
  );
}

function Prompts() {
  return (
    <Section title="System prompt" text="Instructions for every agent on this server.">
      <Group
        group="prompts"
        read={(values: PromptSettingsValues) => ({
          system_prompt: values.system_prompt ?? "",
          include_default: values.include_default ?? true,
          plan_mode_instructions: values.plan_mode_instructions ?? "",
          default_system_prompt: values.default_system_prompt ?? "",
        })}
        write={({ default_system_prompt: _, ...changed }) => changed}
      >
        {({ values, set, error }) => (
          <>
            <Switch
              label="Begin with the built-in prompt"
              checked={values.include_default}
              onChange={(on) => set("include_default", on)}
            />
            <TextArea
              label="Prompt"
              rows={8}
              className="[&_textarea]:font-mono [&_textarea]:text-code"
              value={values.system_prompt}
              onChange={(e) => set("system_prompt", e.target.value)}
              error={error("system_prompt")}
            />
            <TextArea
              label="Instructions for plan mode"
              rows={4}
              className="[&_textarea]:font-mono [&_textarea]:text-code"
              value={values.plan_mode_instructions}
              onChange={(e) => set("plan_mode_instructions", e.target.value)}
              error={error("plan_mode_instructions")}
            />
            <details className="rounded-lg border border-line">
              <summary className="px-3 py-2 font-medium">The whole prompt, as agents get it</summary>
              <pre className="max-h-96 overflow-auto border-t border-line p-3 font-mono text-code whitespace-pre-wrap">
                {[values.include_default ? values.default_system_prompt : "", values.system_prompt]
                  .filter(Boolean)
                  .join("\n\n")}
              </pre>
            </details>
          </>
        )}
      </Group>
    </Section>
  );
}

const idOf = (override: OverrideView | null | undefined) => override?.model_config_id ?? "";

function Helpers() {
  const models = useKnownModels();
  const options = [
    { value: "", label: "The chat's own" },
    ...models.map((one) => ({ value: one.id, label: one.display_name || one.model })),
  ];
  const given = (id: string | undefined) => (id === undefined ? undefined : id ? { model_config_id: id } : null);
  return (
    <Section title="Models for other work">
      <Group
        group="models"
        read={(values: ModelSettingsValues) => ({
          title_generation: idOf(values.title_generation),
          compaction: idOf(values.compaction),
          generate_titles: values.generate_titles ?? true,
          allow_personal_overrides: values.allow_personal_overrides ?? false,
        })}
        write={(changed) => ({
          ...changed,
          ...("title_generation" in changed ? { title_generation: given(changed.title_generation) } : {}),
          ...("compaction" in changed ? { compaction: given(changed.compaction) } : {}),
        })}
      >
        {({ values, set, error }) => (
          <>
            <Switch
              label="Name new chats"
              hint="A model reads the beginning and gives a title."
              checked={values.generate_titles}
              onChange={(on) => set("generate_titles", on)}
            />
            <Select
              label="Titles"
              value={values.title_generation}
              onChange={(id) => set("title_generation", id)}
              options={options}
              hint="This model also makes the labels after a turn and the summaries in the list of chats. Without a choice they are made by a small model (Haiku, GPT mini or nano, Gemini Flash), and if there is none they are left out."
              error={error("title_generation")}
            />
            <Select
              label="Summaries of long chats"
              value={values.compaction}
              onChange={(id) => set("compaction", id)}
              options={options}
              error={error("compaction")}
            />
            <Switch
              label="People may choose the model of their new chats"
              checked={values.allow_personal_overrides}
              onChange={(on) => set("allow_personal_overrides", on)}
            />
          </>
        )}
      </Group>
    </Section>
  );
}
