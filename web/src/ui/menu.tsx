import { ContextMenu, DropdownMenu } from "radix-ui";
import type { ReactNode } from "react";
import { cx } from "@/ui/cx";

export interface MenuItem {
  label: string;
  icon?: ReactNode;
  keys?: string;
  danger?: boolean;
  /** Why it cannot be chosen now; shown under the label. */
  disabled?: string | boolean;
  checked?: boolean;
  onSelect: () => void;
}

export type MenuEntry = MenuItem | "separator" | null | false;

interface MenuProps {
  trigger: ReactNode;
  items: MenuEntry[];
  align?: "start" | "center" | "end";
  side?: "top" | "bottom" | "left" | "right";
  label?: string;
  /** The same menu on right click and Shift+F10 of the trigger. */
  context?: boolean;
}

const CONTENT =
  "pop-in z-50 min-w-44 max-w-80 rounded-lg border border-line bg-bg1 p-1 shadow-pop outline-none max-h-[var(--radix-popper-available-height)] overflow-y-auto";
const ITEM =
  "flex w-full items-center gap-2 rounded-md px-2 py-1.5 text-left outline-none select-none data-highlighted:bg-bg3 data-disabled:opacity-50 pointer-coarse:min-h-11 [&_svg]:size-4 [&_svg]:shrink-0";

/** A menu at its button, or at the pointer. */
export function Menu({ trigger, items, align = "start", side = "bottom", label, context }: MenuProps) {
  const Kind = context ? ContextMenu : DropdownMenu;
  const place = context ? {} : { align, side, sideOffset: 4 };
  return (
    <Kind.Root modal={false}>
      <Kind.Trigger asChild>{trigger}</Kind.Trigger>
      <Kind.Portal>
        <Kind.Content aria-label={label} collisionPadding={8} {...place} className={CONTENT}>
          {items.map((item, index) => {
            if (!item) return null;
            if (item === "separator") return <Kind.Separator key={index} className="my-1 h-px bg-line" />;
            return (
              <Kind.Item
                key={item.label}
                disabled={Boolean(item.disabled)}
                onSelect={item.onSelect}
                className={cx(ITEM, item.danger && "text-danger")}
              >
                {item.icon}
                <span className="min-w-0 flex-1">
                  {item.label}
                  {typeof item.disabled === "string" && (
                    <span className="block text-small text-muted">{item.disabled}</span>
                  )}
                </span>
                {item.checked && <span aria-hidden>✓</span>}
                {item.keys && <kbd className="font-sans text-small text-muted">{item.keys}</kbd>}
              </Kind.Item>
            );
          })}
        </Kind.Content>
      </Kind.Portal>
    </Kind.Root>
  );
}
