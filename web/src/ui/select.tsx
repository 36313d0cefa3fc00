import { useId } from "react";
import { FieldNote } from "@/ui/field";

interface Props {
  label: string;
  value: string;
  onChange: (value: string) => void;
  options: { value: string; label: string }[];
  placeholder?: string;
  hint?: string;
  error?: string | undefined;
  disabled?: boolean;
  className?: string;
}

/** A native select field. */
export function Select({ label, value, onChange, options, placeholder, hint, error, disabled, className }: Props) {
  const id = useId();
  return (
    <div className={className}>
      <label htmlFor={id} className="mb-1 block font-medium">
        {label}
      </label>
      <select
        id={id}
        value={value}
        disabled={disabled}
        aria-invalid={Boolean(error)}
        aria-describedby={`${id}-note`}
        onChange={(event) => onChange(event.target.value)}
        className="h-[34px] w-full rounded-lg border border-control bg-bg1 px-2.5 text-text disabled:opacity-60 aria-invalid:border-danger pointer-coarse:h-11 pointer-coarse:text-[16px]"
      >
        {placeholder && (
          <option value="" disabled>
            {placeholder}
          </option>
        )}
        {options.map((option) => (
          <option key={option.value} value={option.value}>
            {option.label}
          </option>
        ))}
      </select>
      <FieldNote id={`${id}-note`} hint={hint} error={error} />
    </div>
  );
}
