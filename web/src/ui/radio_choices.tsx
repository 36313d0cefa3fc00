import { RadioGroup } from "radix-ui";
import { useId } from "react";

interface Choice<T extends string> {
  value: T;
  label: string;
  hint?: string;
}

interface Props<T extends string> {
  label: string;
  value: T;
  onChange: (value: T) => void;
  options: Choice<T>[];
}

/** A choice of one of several options, each with a description. */
export function Choices<T extends string>({ label, value, onChange, options }: Props<T>) {
  const id = useId();
  return (
    <RadioGroup.Root
      aria-label={label}
      value={value}
      onValueChange={(next) => onChange(next as T)}
      className="flex flex-col gap-2"
    >
      {options.map((option) => (
        <label
          key={option.value}
          htmlFor={`${id}-${option.value}`}
          className="flex cursor-pointer items-start gap-2.5 rounded-lg border border-line px-3 py-2 has-data-[state=checked]:border-accent has-data-[state=checked]:bg-bg2"
        >
          <RadioGroup.Item
            id={`${id}-${option.value}`}
            value={option.value}
            className="mt-0.5 grid size-4 shrink-0 place-items-center rounded-full border border-control data-[state=checked]:border-accent"
          >
            <RadioGroup.Indicator className="size-2 rounded-full bg-accent" />
          </RadioGroup.Item>
          <span className="min-w-0">
            <span className="block font-medium">{option.label}</span>
            {option.hint && <span className="block text-small text-muted">{option.hint}</span>}
          </span>
        </label>
      ))}
    </RadioGroup.Root>
  );
}
