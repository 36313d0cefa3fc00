import { Dialog } from "radix-ui";
import { lazy, Suspense, useEffect } from "react";
import { useStore } from "zustand";
import { layout, setLayout } from "@/state/layout";

// Loaded behind the first page, so that the palette is there when somebody wants it and holds nothing up before.
const AFTER_MS = 1500;
const load = () => import("@/features/palette/palette_body");
const PaletteBody = lazy(() => load().then((module) => ({ default: module.PaletteBody })));

// Where the focus was. Noted by the store, since by the time a dialog could look its field has taken it.
let opener: Element | null = null;
let hasLeft = false;
layout.subscribe((now, before) => {
  if (!now.paletteOpen || before.paletteOpen) return;
  opener = document.activeElement;
  hasLeft = false;
});

/** Everything by name: recent chats and commands at once, and what the server finds in messages. */
export function Palette() {
  const isOpen = useStore(layout, (state) => state.paletteOpen);
  useEffect(() => {
    // Who is offline by then gets it when it is opened.
    const timer = setTimeout(() => void load().catch(() => {}), AFTER_MS);
    return () => clearTimeout(timer);
  }, []);
  return (
    <Dialog.Root open={isOpen} onOpenChange={(open) => setLayout({ paletteOpen: open })}>
      <Dialog.Portal>
        <Dialog.Overlay className="fixed inset-0 z-40 bg-black/45" />
        <Dialog.Content
          aria-describedby={undefined}
          onCloseAutoFocus={(event) => {
            event.preventDefault();
            // Whoever goes to another page is received there.
            if (!hasLeft && opener instanceof HTMLElement) opener.focus();
          }}
          className="pop-in fixed inset-x-2 top-2 z-40 flex max-h-[70dvh] flex-col overflow-hidden rounded-xl border border-line bg-bg1 shadow-pop outline-none sm:inset-x-auto sm:top-[12vh] sm:left-1/2 sm:w-[min(40rem,calc(100vw-2rem))] sm:-translate-x-1/2"
        >
          <Dialog.Title className="sr-only">Search and commands</Dialog.Title>
          <Suspense fallback={null}>
            <PaletteBody
              onLeave={() => {
                hasLeft = true;
              }}
            />
          </Suspense>
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}
