import { patchPreferences } from "@/api/account";
import { keys, queryClient, usePreferences } from "@/state/queries";
import { TextArea } from "@/ui/field";
import { Form, Section } from "./settings_form";

const MAX_BYTES = 128 * 1024;

/** The user's instructions for all of their agents. */
export function Instructions() {
  const { data } = usePreferences();
  if (!data) return null;
  return (
    <Section title="Personal instructions" text="They are part of the prompt of every chat you start.">
      <Form
        initial={{ custom_prompt: data.custom_prompt }}
        save={async (changed) => {
          queryClient.setQueryData(keys.preferences, await patchPreferences(changed));
        }}
      >
        {({ values, set, error }) => (
          <TextArea
            label="Instructions"
            rows={12}
            className="[&_textarea]:font-mono [&_textarea]:text-code"
            value={values.custom_prompt}
            onChange={(e) => set("custom_prompt", e.target.value)}
            hint={`${new TextEncoder().encode(values.custom_prompt).length.toLocaleString()} of ${MAX_BYTES.toLocaleString()} bytes`}
            error={error("custom_prompt")}
          />
        )}
      </Form>
    </Section>
  );
}
