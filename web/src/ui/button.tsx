import type { ButtonHTMLAttributes, ReactNode, Ref } from "react";
import { cx } from "@/ui/cx";
import { hint } from "@/ui/tooltip";

type Kind = "primary" | "plain" | "ghost" | "danger";
type Size = "small" | "medium";

const KINDS: Record<Kind, string> = {
  primary: "bg-accent text-on-accent hover:bg-accent-hover border-transparent",
  plain: "bg-bg1 text-text border-line hover:bg-bg3",
  ghost: "bg-transparent border-transparent hover:bg-bg3",
  danger: "bg-transparent text-danger border-line hover:bg-removed",
};
const SIZES: Record<Size, string> = {
  small: "h-7 px-2 text-small gap-1 rounded-md",
  medium: "h-8 px-3 text-ui gap-1.5 rounded-lg",
};

export interface ButtonProps extends ButtonHTMLAttributes<HTMLButtonElement> {
  kind?: Kind;
  size?: Size;
  ref?: Ref<HTMLButtonElement>;
}

/** A button with a text. */
export function Button({ kind = "plain", size = "medium", className, type = "button", ...rest }: ButtonProps) {
  return (
    <button
      type={type}
      className={cx(
        "inline-flex shrink-0 items-center justify-center border font-medium whitespace-nowrap transition-colors select-none disabled:opacity-45",
        "pointer-coarse:min-h-11",
        KINDS[kind],
        SIZES[size],
        className,
      )}
      {...rest}
    />
  );
}

export interface IconButtonProps extends ButtonHTMLAttributes<HTMLButtonElement> {
  /** The name for screen readers, also shown as the tooltip. */
  label: string;
  children: ReactNode;
  /** The shortcut in the tooltip, such as `Ctrl-K`. */
  keys?: string;
  kind?: Kind;
  size?: Size;
  ref?: Ref<HTMLButtonElement>;
}

/** A square icon button. It always has a name for screen readers. */
export function IconButton({
  label,
  keys,
  kind = "ghost",
  size = "medium",
  className,
  children,
  type = "button",
  ...rest
}: IconButtonProps) {
  return (
    <button
      type={type}
      aria-label={label}
      className={cx(
        "inline-flex shrink-0 items-center justify-center rounded-md border transition-colors disabled:opacity-45 [&_svg]:size-4",
        "pointer-coarse:min-h-11 pointer-coarse:min-w-11",
        KINDS[kind],
        kind === "ghost" && "text-muted hover:text-text",
        size === "small" ? "size-6" : "size-8",
        className,
      )}
      {...hint(label, keys)}
      {...rest}
    >
      {children}
    </button>
  );
}
