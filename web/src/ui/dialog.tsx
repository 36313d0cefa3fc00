import { X } from "lucide-react";
import { Dialog as Radix } from "radix-ui";
import { type ReactNode, useRef } from "react";
import { Button, IconButton } from "@/ui/button";
import { cx } from "@/ui/cx";

const FIELD = "input:enabled:not([type=hidden]):not([readonly]), textarea:enabled, select:enabled";

/** Return the field that gets the focus: the first one, but not a choice that is already made. */
function firstField(content: HTMLElement): HTMLElement | undefined {
  return [...content.querySelectorAll<HTMLElement>(FIELD)].find(
    (field) => !(field instanceof HTMLSelectElement) || field.value === "",
  );
}

interface DialogProps {
  open: boolean;
  onOpenChange: (open: boolean) => void;
  title: string;
  description?: ReactNode;
  children?: ReactNode;
  footer?: ReactNode;
  wide?: boolean;
  /** Whether the dialog cannot be closed, such as the sign-in dialog. */
  modal?: boolean;
}

/** A dialog with a title. It traps the focus and restores it when it is closed. */
export function Dialog({ open, onOpenChange, title, description, children, footer, wide, modal }: DialogProps) {
  // Most dialogs are opened by a shortcut or a menu, so there is no trigger button.
  const opener = useRef<Element | null>(null);
  return (
    <Radix.Root open={open} onOpenChange={modal ? () => {} : onOpenChange}>
      <Radix.Portal>
        <Radix.Overlay className="fixed inset-0 z-40 bg-black/45" />
        <Radix.Content
          {...(description ? {} : { "aria-describedby": undefined })}
          onOpenAutoFocus={(event) => {
            opener.current = document.activeElement;
            event.preventDefault();
            // A form gets the focus, except on touch devices, where the keyboard would cover it.
            const content = event.currentTarget as HTMLElement;
            const field = matchMedia("(pointer: fine)").matches ? firstField(content) : null;
            (field ?? content).focus();
          }}
          onCloseAutoFocus={(event) => {
            event.preventDefault();
            if (opener.current instanceof HTMLElement) opener.current.focus();
          }}
          onKeyDown={(event) => {
            // As in a form, Enter in a field presses the last button of the dialog.
            const { target } = event;
            if (event.key !== "Enter" || event.defaultPrevented || event.nativeEvent.isComposing) return;
            if (!(target instanceof HTMLInputElement) || target.form || /^(checkbox|radio)$/.test(target.type)) return;
            event.preventDefault();
            event.currentTarget.querySelector<HTMLElement>("[data-footer] > button:last-child")?.click();
          }}
          className={cx(
            "pop-in fixed z-40 flex flex-col border border-line bg-bg1 shadow-pop outline-none",
            "inset-x-0 bottom-0 max-h-[92dvh] rounded-t-xl pb-[env(safe-area-inset-bottom)]",
            "sm:inset-x-auto sm:bottom-auto sm:top-1/2 sm:left-1/2 sm:max-h-[85dvh] sm:-translate-x-1/2 sm:-translate-y-1/2 sm:rounded-xl",
            wide ? "sm:w-[min(60rem,calc(100vw-2rem))]" : "sm:w-[min(30rem,calc(100vw-2rem))]",
          )}
        >
          <div className="flex items-start gap-3 px-5 pt-4">
            <div className="min-w-0 flex-1">
              <Radix.Title className="text-[16px] font-semibold break-words">{title}</Radix.Title>
              {description && <Radix.Description className="mt-1 text-muted">{description}</Radix.Description>}
            </div>
            {!modal && (
              <Radix.Close asChild>
                <IconButton label="Close" size="small">
                  <X />
                </IconButton>
              </Radix.Close>
            )}
          </div>
          <div className="min-h-0 flex-1 overflow-y-auto px-5 py-4">{children}</div>
          {footer && (
            <div data-footer className="flex flex-wrap justify-end gap-2 border-t border-line px-5 py-3">
              {footer}
            </div>
          )}
        </Radix.Content>
      </Radix.Portal>
    </Radix.Root>
  );
}

interface ConfirmProps {
  open: boolean;
  onOpenChange: (open: boolean) => void;
  title: string;
  text: ReactNode;
  action: string;
  danger?: boolean;
  onConfirm: () => void;
}

/** A confirmation dialog. */
export function Confirm({ open, onOpenChange, title, text, action, danger, onConfirm }: ConfirmProps) {
  return (
    <Dialog
      open={open}
      onOpenChange={onOpenChange}
      title={title}
      description={text}
      footer={
        <>
          <Button onClick={() => onOpenChange(false)}>Cancel</Button>
          <Button
            kind={danger ? "danger" : "primary"}
            onClick={() => {
              onOpenChange(false);
              onConfirm();
            }}
          >
            {action}
          </Button>
        </>
      }
    />
  );
}
