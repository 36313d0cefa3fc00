import { Popover as Radix } from "radix-ui";
import type { ReactNode } from "react";
import { cx } from "@/ui/cx";
import { isFocusTaken } from "@/ui/focus_restore";

interface Props {
  trigger: ReactNode;
  children: ReactNode;
  open?: boolean;
  onOpenChange?: (open: boolean) => void;
  align?: "start" | "center" | "end";
  side?: "top" | "bottom" | "left" | "right";
  className?: string;
  /** The name for screen readers. */
  label: string;
}

/** A popover with its button. */
export function Popover({
  trigger,
  children,
  open,
  onOpenChange,
  align = "start",
  side = "bottom",
  className,
  label,
}: Props) {
  return (
    <Radix.Root {...(open === undefined ? {} : { open })} {...(onOpenChange ? { onOpenChange } : {})}>
      <Radix.Trigger asChild>{trigger}</Radix.Trigger>
      <Radix.Portal>
        <Radix.Content
          aria-label={label}
          align={align}
          side={side}
          sideOffset={6}
          collisionPadding={8}
          onCloseAutoFocus={(event) => isFocusTaken() && event.preventDefault()}
          className={cx(
            "sheet pop-in z-40 max-h-[min(32rem,var(--radix-popover-content-available-height))] overflow-y-auto rounded-xl border border-line bg-bg1 p-3 shadow-pop outline-none",
            className,
          )}
        >
          {children}
        </Radix.Content>
      </Radix.Portal>
    </Radix.Root>
  );
}
