import { Switch as Radix } from "radix-ui";
import type { ReactNode } from "react";

interface Props {
  checked: boolean;
  onChange: (checked: boolean) => void;
  label: string;
  hint?: ReactNode;
  disabled?: boolean;
}

/** A switch with a label. */
export function Switch({ checked, onChange, label, hint, disabled }: Props) {
  return (
    // biome-ignore lint/a11y/noLabelWithoutControl: the switch inside is a button, which a label can name
    <label className="flex items-start gap-3 py-1">
      <Radix.Root
        checked={checked}
        onCheckedChange={onChange}
        disabled={disabled ?? false}
        className="relative mt-0.5 h-5 w-9 shrink-0 rounded-full bg-control transition-colors data-[state=checked]:bg-accent disabled:opacity-50"
      >
        <Radix.Thumb className="block size-4 translate-x-0.5 rounded-full bg-white transition-transform data-[state=checked]:translate-x-[18px]" />
      </Radix.Root>
      <span className="min-w-0">
        <span className="block">{label}</span>
        {hint && <span className="block text-small text-muted">{hint}</span>}
      </span>
    </label>
  );
}
