import type {
  AdvisorSettingsValues,
  Effort,
  ModelSettingsValues,
  OverrideView,
  PromptSettingsValues,
  SubagentSettingsValues,
} from "@/api/types.gen";
import { type KnownModel, useKnownModels } from "@/state/queries";
import { TextArea, TextField } from "@/ui/field";
import { Select } from "@/ui/select";
import { Switch } from "@/ui/switch";
import { Section } from "./settings_form";
import { Group } from "./settings_group";

/** The system prompt of all agents, the models for other work, subagents and the advisor. */
export function Agent() {
  return (
    <>
      <Prompts />
      <Helpers />
      <Subagents />
      <Advisor />
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

const MODELS = ["title_generation", "compaction", "general_subagents", "explore_subagents"] as const;

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
          general_subagents: idOf(values.general_subagents),
          explore_subagents: idOf(values.explore_subagents),
          generate_titles: values.generate_titles ?? true,
          allow_personal_overrides: values.allow_personal_overrides ?? false,
        })}
        write={(changed) => ({
          ...changed,
          ...Object.fromEntries(MODELS.flatMap((name) => (name in changed ? [[name, given(changed[name])]] : []))),
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
            <Select
              label="General subagents"
              value={values.general_subagents}
              onChange={(id) => set("general_subagents", id)}
              options={options}
              error={error("general_subagents")}
            />
            <Select
              label="Explore subagents"
              value={values.explore_subagents}
              onChange={(id) => set("explore_subagents", id)}
              options={options}
              error={error("explore_subagents")}
            />
            <Switch
              label="Users may choose models for their new chats and subagents"
              checked={values.allow_personal_overrides}
              onChange={(on) => set("allow_personal_overrides", on)}
            />
          </>
        )}
      </Group>
    </Section>
  );
}

function Subagents() {
  return (
    <Section title="Subagents" text="Agents can start other agents that work on their own tasks.">
      <Group
        group="subagents"
        read={(values: SubagentSettingsValues) => ({
          enabled: values.enabled ?? true,
          max_minutes: String(values.max_minutes ?? 60),
          stall_minutes: String(values.stall_minutes ?? 10),
          wake_parent: values.wake_parent ?? true,
        })}
        write={({ max_minutes: most, stall_minutes: stall, ...changed }) => ({
          ...changed,
          ...(most === undefined ? {} : { max_minutes: Number(most) }),
          ...(stall === undefined ? {} : { stall_minutes: Number(stall) }),
        })}
      >
        {({ values, set, error }) => (
          <>
            <Switch label="Agents may start subagents" checked={values.enabled} onChange={(on) => set("enabled", on)} />
            <Switch
              label="Resume the parent when a subagent ends"
              hint="If off, the parent reads the report with the next message."
              checked={values.wake_parent}
              onChange={(on) => set("wake_parent", on)}
            />
            <div className="grid gap-4 sm:grid-cols-2">
              <TextField
                label="Time limit, in minutes"
                hint="A subagent is stopped at its time limit and keeps its partial report."
                inputMode="numeric"
                value={values.max_minutes}
                onChange={(e) => set("max_minutes", e.target.value)}
                error={error("max_minutes")}
              />
              <TextField
                label="Report as stalled after, in minutes"
                hint="The time without progress."
                inputMode="numeric"
                value={values.stall_minutes}
                onChange={(e) => set("stall_minutes", e.target.value)}
                error={error("stall_minutes")}
              />
            </div>
          </>
        )}
      </Group>
    </Section>
  );
}

const EFFORTS: Effort[] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

function Advisor() {
  const models = useKnownModels();
  return (
    <Section title="Advisor" text="A second model that agents ask for advice. It has no tools.">
      <Group
        group="advisor"
        read={(values: AdvisorSettingsValues) => ({
          enabled: values.enabled ?? false,
          max_uses_per_run: String(values.max_uses_per_run ?? 5),
          max_output_tokens: String(values.max_output_tokens ?? 16_384),
          model_config_id: values.model_config_id ?? "",
          reasoning_effort: (values.reasoning_effort ?? "") as Effort | "",
        })}
        write={(changed) => ({
          ...("enabled" in changed ? { enabled: changed.enabled } : {}),
          ...("max_uses_per_run" in changed ? { max_uses_per_run: Number(changed.max_uses_per_run) } : {}),
          ...("max_output_tokens" in changed ? { max_output_tokens: Number(changed.max_output_tokens) } : {}),
          ...("model_config_id" in changed ? { model_config_id: changed.model_config_id || null } : {}),
          ...("reasoning_effort" in changed ? { reasoning_effort: changed.reasoning_effort || null } : {}),
        })}
      >
        {({ values, set, error }) => (
          <>
            <Switch label="Agents may ask the advisor" checked={values.enabled} onChange={(on) => set("enabled", on)} />
            <div className="grid gap-4 sm:grid-cols-2">
              <TextField
                label="Uses per turn"
                hint="1 to 50."
                inputMode="numeric"
                value={values.max_uses_per_run}
                onChange={(e) => set("max_uses_per_run", e.target.value)}
                error={error("max_uses_per_run")}
              />
              <TextField
                label="Output tokens per answer"
                hint="256 to 65,536."
                inputMode="numeric"
                value={values.max_output_tokens}
                onChange={(e) => set("max_output_tokens", e.target.value)}
                error={error("max_output_tokens")}
              />
              <Select
                label="Model of the advisor"
                value={values.model_config_id}
                onChange={(id) => {
                  set("model_config_id", id);
                  if (!id) set("reasoning_effort", "");
                }}
                options={advisorModels(models, values.model_config_id)}
                error={error("model_config_id")}
              />
              {values.model_config_id && (
                <Select
                  label="Effort of the advisor"
                  value={values.reasoning_effort}
                  onChange={(effort) => set("reasoning_effort", effort as Effort | "")}
                  options={[
                    { value: "", label: "The model's own" },
                    ...EFFORTS.map((effort) => ({ value: effort, label: effort })),
                  ]}
                  error={error("reasoning_effort")}
                />
              )}
            </div>
          </>
        )}
      </Group>
    </Section>
  );
}

/** Return the models to choose from. A stored model that is not available is shown, too. */
function advisorModels(models: readonly KnownModel[], stored: string) {
  const known = models.map((one) => ({ value: one.id, label: one.display_name || one.model }));
  const isMissing = stored !== "" && !known.some((one) => one.value === stored);
  return [
    { value: "", label: "The chat's own" },
    ...(isMissing ? [{ value: stored, label: "Unavailable model" }] : []),
    ...known,
  ];
}
