import { CircleAlert, CircleCheck, Info, X } from "lucide-react";
import { useStore } from "zustand";
import { createStore } from "zustand/vanilla";
import { Button, IconButton } from "@/ui/button";

export interface Toast {
  id: number;
  text: string;
  kind: "info" | "ok" | "error";
  action?: { label: string; run: () => void };
  ms: number;
}

const store = createStore<{ toasts: Toast[] }>(() => ({ toasts: [] }));
let last = 0;

export interface ToastOptions {
  kind?: Toast["kind"];
  action?: Toast["action"];
  /** The duration; 0 until it is closed. */
  ms?: number;
}

/** Show a toast. Return a function that removes it. */
export function toast(text: string, { kind = "info", action, ms }: ToastOptions = {}): () => void {
  last += 1;
  const id = last;
  // Errors, and toasts with an action, stay longer.
  const usual = kind === "error" || action ? 10_000 : 5_000;
  const shown: Toast = { id, text, kind, ms: ms ?? usual, ...(action ? { action } : {}) };
  store.setState((state) => ({ toasts: [...state.toasts.filter((one) => one.text !== text), shown].slice(-4) }));
  const close = () => store.setState((state) => ({ toasts: state.toasts.filter((one) => one.id !== id) }));
  if (shown.ms > 0) setTimeout(close, shown.ms);
  return close;
}

const ICONS = {
  info: <Info className="text-muted" />,
  ok: <CircleCheck className="text-ok" />,
  error: <CircleAlert className="text-danger" />,
};

/** The container of toasts; mounted once in the shell. They are below the header, away from the message box. */
export function Toasts() {
  const toasts = useStore(store, (state) => state.toasts);
  return (
    <section
      aria-label="Notices"
      className="pointer-events-none fixed inset-x-4 top-14 z-50 flex flex-col items-end gap-2 pt-[env(safe-area-inset-top)]"
    >
      {toasts.map((one) => (
        <div
          key={one.id}
          role={one.kind === "error" ? "alert" : "status"}
          className="pop-in pointer-events-auto flex max-w-[26rem] items-start gap-2 rounded-lg border border-line bg-bg1 py-2 pr-2 pl-3 shadow-pop [&>svg]:mt-1 [&>svg]:size-4 [&>svg]:shrink-0"
        >
          {ICONS[one.kind]}
          <p className="min-w-0 flex-1 py-0.5 break-words">{one.text}</p>
          {one.action && (
            <Button
              size="small"
              onClick={() => {
                one.action?.run();
                store.setState((state) => ({ toasts: state.toasts.filter((other) => other.id !== one.id) }));
              }}
            >
              {one.action.label}
            </Button>
          )}
          <IconButton
            label="Close notice"
            size="small"
            onClick={() => store.setState((state) => ({ toasts: state.toasts.filter((other) => other.id !== one.id) }))}
          >
            <X />
          </IconButton>
        </div>
      ))}
    </section>
  );
}
