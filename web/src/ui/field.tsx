import { type InputHTMLAttributes, type ReactNode, type Ref, type TextareaHTMLAttributes, useId } from "react";
import { cx } from "@/ui/cx";

const BOX =
  "w-full rounded-lg border border-control bg-bg1 px-3 py-1.5 text-text placeholder:text-muted aria-invalid:border-danger disabled:opacity-60 pointer-coarse:text-[16px]";

interface Wrapped {
  label: string;
  hint?: ReactNode;
  error?: string | undefined;
}

export interface TextFieldProps extends InputHTMLAttributes<HTMLInputElement>, Wrapped {
  ref?: Ref<HTMLInputElement>;
}

/** A text field with a label, a hint and an error. */
export function TextField({ label, hint, error, className, ...rest }: TextFieldProps) {
  const id = useId();
  return (
    <div className={className}>
      <label htmlFor={id} className="mb-1 block font-medium">
        {label}
      </label>
      <input id={id} className={BOX} aria-invalid={Boolean(error)} aria-describedby={`${id}-note`} {...rest} />
      <FieldNote id={`${id}-note`} hint={hint} error={error} />
    </div>
  );
}

export interface TextAreaProps extends TextareaHTMLAttributes<HTMLTextAreaElement>, Wrapped {
  ref?: Ref<HTMLTextAreaElement>;
}

/** A text area with a label, a hint and an error. */
export function TextArea({ label, hint, error, className, ...rest }: TextAreaProps) {
  const id = useId();
  return (
    <div className={className}>
      <label htmlFor={id} className="mb-1 block font-medium">
        {label}
      </label>
      <textarea id={id} className={BOX} aria-invalid={Boolean(error)} aria-describedby={`${id}-note`} {...rest} />
      <FieldNote id={`${id}-note`} hint={hint} error={error} />
    </div>
  );
}

/** The line below a field: the error, else the hint. */
export function FieldNote({ id, hint, error }: { id: string; hint?: ReactNode; error?: string | undefined }) {
  return (
    <p id={id} className={cx("mt-1 text-small empty:hidden", error ? "text-danger" : "text-muted")}>
      {error ?? hint}
    </p>
  );
}
