import { DropdownMenu } from "radix-ui";
import { type ReactNode, useRef, useState } from "react";
import { cx } from "@/ui/cx";
import { isFocusTaken } from "@/ui/focus_restore";

export interface MenuItem {
  label: string;
  icon?: ReactNode;
  keys?: string;
  danger?: boolean;
  /** The reason why the entry cannot be chosen, shown below the label. */
  disabled?: string | boolean;
  checked?: boolean;
  onSelect: () => void;
}

export type MenuEntry = MenuItem | "separator" | null | false;

/** Menu entries. A function is called when the menu opens, not at every render. */
export type MenuItems = MenuEntry[] | (() => MenuEntry[]);

interface MenuProps {
  trigger: ReactNode;
  items: MenuItems;
  align?: "start" | "center" | "end";
  side?: "top" | "bottom" | "left" | "right";
  label?: string;
}

// On a small screen the menu is a sheet at the bottom (styles.css, "sheet").
const CONTENT =
  "sheet pop-in z-50 min-w-44 max-w-80 rounded-lg border border-line bg-bg1 p-1 shadow-pop outline-none max-h-[var(--radix-popper-available-height)] overflow-y-auto";
const ITEM =
  "flex w-full items-center gap-2 rounded-md px-2 py-1.5 text-left outline-none select-none data-highlighted:bg-bg3 data-disabled:opacity-50 pointer-coarse:min-h-11 [&_svg]:size-4 [&_svg]:shrink-0";

/** A menu with its button. */
export function Menu({ trigger, items, align = "start", side = "bottom", label }: MenuProps) {
  const [open, setOpen] = useState(false);
  const isTouch = useRef(false);
  return (
    <DropdownMenu.Root modal={false} open={open} onOpenChange={setOpen}>
      <DropdownMenu.Trigger
        asChild
        // A touch opens the menu when it ends. The sheet may cover the button, so a finger that is still down would
        // choose the entry below it.
        onPointerDown={(event) => {
          isTouch.current = event.pointerType !== "mouse";
          if (isTouch.current) event.preventDefault();
        }}
        onClick={() => {
          if (isTouch.current) setOpen(!open);
          isTouch.current = false;
        }}
      >
        {trigger}
      </DropdownMenu.Trigger>
      <DropdownMenu.Portal>
        <DropdownMenu.Content
          aria-label={label}
          collisionPadding={8}
          align={align}
          side={side}
          sideOffset={4}
          className={CONTENT}
          onCloseAutoFocus={(event) => isFocusTaken() && event.preventDefault()}
        >
          <SheetTitle label={label} />
          <Items items={items} />
        </DropdownMenu.Content>
      </DropdownMenu.Portal>
    </DropdownMenu.Root>
  );
}

/** The position of a menu: below a button, or at a point. */
export interface MenuPlace {
  left: number;
  top: number;
  width: number;
  height: number;
}

/** After the button of an open menu has closed it, the same press must not open it again within this time. */
export const AGAIN_MS = 250;

/** Return the position below an element. */
export function placeOf(opener: HTMLElement): MenuPlace {
  const { left, top, width, height } = opener.getBoundingClientRect();
  return { left, top, width, height };
}

interface MenuAtProps {
  place: MenuPlace;
  items: MenuItems;
  label: string;
  /** The element that gets the focus when the menu closes. */
  opener: HTMLElement;
  onClose: () => void;
}

/** An open menu at a position. All rows of a list share it, because one menu per row would be slow. */
export function MenuAt({ place, items, label, opener, onClose }: MenuAtProps) {
  return (
    <DropdownMenu.Root modal={false} open onOpenChange={(open) => !open && onClose()}>
      <DropdownMenu.Trigger asChild>
        <span aria-hidden className="pointer-events-none fixed" style={{ ...place }} />
      </DropdownMenu.Trigger>
      <DropdownMenu.Portal>
        <DropdownMenu.Content
          aria-label={label}
          aria-labelledby={undefined}
          collisionPadding={8}
          align={place.width > 0 ? "end" : "start"}
          sideOffset={4}
          className={CONTENT}
          onCloseAutoFocus={(event) => {
            event.preventDefault();
            if (!isFocusTaken()) opener.focus({ preventScroll: true });
          }}
        >
          <SheetTitle label={label} />
          <Items items={items} />
        </DropdownMenu.Content>
      </DropdownMenu.Portal>
    </DropdownMenu.Root>
  );
}

/** The title of a sheet on a small screen, which is far from the button. */
function SheetTitle({ label }: { label: string | undefined }) {
  if (!label) return null;
  return (
    <DropdownMenu.Label aria-hidden className="truncate px-2 pt-1 pb-2 text-small text-muted sm:hidden">
      {label}
    </DropdownMenu.Label>
  );
}

function Items({ items }: { items: MenuItems }) {
  return (typeof items === "function" ? items() : items).map((item, index) => {
    if (!item) return null;
    if (item === "separator") return <DropdownMenu.Separator key={index} className="my-1 h-px bg-line" />;
    return (
      <DropdownMenu.Item
        key={item.label}
        disabled={Boolean(item.disabled)}
        onSelect={item.onSelect}
        className={cx(ITEM, item.danger && "text-danger")}
      >
        {item.icon}
        <span className="min-w-0 flex-1">
          {item.label}
          {typeof item.disabled === "string" && <span className="block text-small text-muted">{item.disabled}</span>}
        </span>
        {item.checked && <span aria-hidden>✓</span>}
        {item.keys && <kbd className="font-sans text-small text-muted pointer-coarse:hidden">{item.keys}</kbd>}
      </DropdownMenu.Item>
    );
  });
}
