import { Tooltip as Radix } from "radix-ui";
import type { ReactNode } from "react";

/** Once around the application: tooltips after the first one open at once. */
export function TooltipProvider({ children }: { children: ReactNode }) {
  return (
    <Radix.Provider delayDuration={500} skipDelayDuration={200}>
      {children}
    </Radix.Provider>
  );
}

interface Props {
  text: ReactNode;
  keys?: string;
  side?: "top" | "bottom" | "left" | "right";
  children: ReactNode;
}

/** A hint on hover and focus, dismissed by Esc. The child must take a ref. */
export function Tooltip({ text, keys, side = "top", children }: Props) {
  return (
    <Radix.Root>
      <Radix.Trigger asChild>{children}</Radix.Trigger>
      <Radix.Portal>
        <Radix.Content
          side={side}
          sideOffset={6}
          collisionPadding={8}
          className="pop-in z-50 flex max-w-80 items-center gap-2 rounded-md bg-text px-2 py-1 text-small break-words whitespace-pre-wrap text-bg1 shadow-pop"
        >
          {text}
          {keys && <kbd className="font-sans opacity-70">{keys}</kbd>}
        </Radix.Content>
      </Radix.Portal>
    </Radix.Root>
  );
}
