import { sentence } from "@/api/errors";
import { saveDisplay, useAppearance } from "@/state/appearance";
import { useDisplay } from "@/state/queries";
import { Choices } from "@/ui/radio_choices";
import { Select } from "@/ui/select";
import { Switch } from "@/ui/switch";
import { toast } from "@/ui/toast";
import { Section } from "./settings_form";

/** Save a display setting immediately; its effect is visible. */
export function keep(change: Record<string, unknown>): void {
  saveDisplay(change).catch((error) => toast(sentence(error), { kind: "error" }));
}

const SIZES = [11, 12, 13, 14, 15, 16].map((size) => ({ value: String(size), label: `${size} px` }));

/** The page for theme, density, width, code size and motion. */
export function Appearance() {
  const state = useAppearance((all) => all);
  const { fullWidth } = useDisplay();
  return (
    <>
      <Section title="Theme">
        <Choices
          label="Theme"
          value={state.theme}
          onChange={(theme) => keep({ theme })}
          options={[
            { value: "system", label: "System", hint: "Light or dark, like your device." },
            { value: "light", label: "Light" },
            { value: "dark", label: "Dark" },
          ]}
        />
      </Section>
      <Section title="Layout">
        <Choices
          label="Density"
          value={state.density}
          onChange={(density) => keep({ density })}
          options={[
            { value: "comfortable", label: "Comfortable" },
            { value: "compact", label: "Compact", hint: "Shows more rows in the list." },
          ]}
        />
        <Switch
          label="Full width"
          hint="Chats use the full width of the window."
          checked={fullWidth}
          onChange={(on) => keep({ full_width: on })}
        />
        <Select
          label="Size of code"
          className="max-w-40"
          value={String(state.code_size)}
          onChange={(size) => keep({ code_size: Number(size) })}
          options={SIZES}
        />
      </Section>
      <Section title="Accessibility">
        <Switch
          label="Reduce motion"
          hint="Even if your device does not ask for it."
          checked={state.motion === "reduced"}
          onChange={(on) => keep({ motion: on ? "reduced" : "system" })}
        />
        <Switch
          label="Keyboard shortcuts"
          hint="Press ? for a list of them."
          checked={state.shortcuts}
          onChange={(on) => keep({ shortcuts: on })}
        />
        <Select
          label="Screen readers hear answers"
          className="max-w-60"
          value={state.announce}
          onChange={(announce) => keep({ announce })}
          options={[
            { value: "off", label: "Never" },
            { value: "end", label: "At the end of a turn" },
            { value: "sentence", label: "Sentence by sentence" },
          ]}
        />
      </Section>
    </>
  );
}
