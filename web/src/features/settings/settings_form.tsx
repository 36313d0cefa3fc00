import { useMutation } from "@tanstack/react-query";
import { type FormEvent, type ReactNode, useEffect, useState } from "react";
import { useBlocker } from "react-router";
import { ApiError, sentence } from "@/api/errors";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Notice } from "@/ui/notice";
import { toast } from "@/ui/toast";

/** A section of a settings page. The title is omitted on pages with one section. */
export function Section({
  id,
  title,
  text,
  children,
}: {
  id?: string;
  title?: string;
  text?: ReactNode;
  children: ReactNode;
}) {
  return (
    <section id={id} className="flex flex-col gap-4">
      {(title || text) && (
        <div>
          {title && <h2 className="text-[15px] font-semibold">{title}</h2>}
          {text && <p className="mt-0.5 text-muted">{text}</p>}
        </div>
      )}
      {children}
    </section>
  );
}

export interface Draft<T> {
  values: T;
  set: <K extends keyof T>(name: K, value: T[K]) => void;
  /** Returns the server's error message for a field. */
  error: (name: string) => string | undefined;
}

interface Props<T> {
  initial: T;
  /** Saves the changed fields. */
  save: (changed: Partial<T>) => Promise<unknown>;
  children: (draft: Draft<T>) => ReactNode;
  saved?: string;
  action?: string;
  /** Whether the fields are reset after saving. */
  clears?: boolean;
  /** Returns whether the form can be saved. */
  isReady?: (values: T) => boolean;
}

/** A form. The Save button appears after a change, and the server's errors are shown below their fields. */
export function Form<T extends object>({
  initial,
  save,
  children,
  saved = "Saved.",
  action = "Save",
  clears = false,
  isReady = () => true,
}: Props<T>) {
  const [values, setValues] = useState(initial);
  const names = Object.keys(values) as (keyof T)[];
  const changed = names.filter((name) => JSON.stringify(values[name]) !== JSON.stringify(initial[name]));
  const isChanged = changed.length > 0;
  const maySave = isChanged && isReady(values);
  const store = useMutation({
    mutationFn: () => save(Object.fromEntries(changed.map((name) => [name, values[name]])) as Partial<T>),
    onSuccess: () => {
      if (clears) setValues(initial);
      toast(saved, { kind: "ok" });
    },
  });
  const refused = store.error instanceof ApiError ? store.error : null;
  const isFieldError = (refused?.fields ?? []).some((one) => names.some((name) => one.field.endsWith(String(name))));
  // The fields are reset when the stored values change.
  const serial = JSON.stringify(initial);
  // biome-ignore lint/correctness/useExhaustiveDependencies: compared by its JSON text
  useEffect(() => setValues(initial), [serial]);

  function onSubmit(event: FormEvent) {
    event.preventDefault();
    if (maySave) store.mutate();
  }

  return (
    <form onSubmit={onSubmit} className="flex flex-col gap-4" noValidate>
      {children({
        values,
        set: (name, value) => setValues((old) => ({ ...old, [name]: value })),
        error: (name) => refused?.field(name),
      })}
      {store.error && !isFieldError && <Notice kind="error">{complaintOf(store.error)}</Notice>}
      <div className="flex gap-2">
        <Button type="submit" kind="primary" disabled={!maySave || store.isPending}>
          {store.isPending ? "Saving" : action}
        </Button>
        {isChanged && (
          <Button
            onClick={() => {
              setValues(initial);
              store.reset();
            }}
          >
            {clears ? "Clear" : "Reset"}
          </Button>
        )}
      </div>
      <Leaving isChanged={isChanged && !store.isPending && !store.isSuccess} />
    </form>
  );
}

/** Return the error message for a form with a list of rules, with the number of the rule. */
export function complaintOf(error: unknown): string {
  const [first] = error instanceof ApiError ? error.fields : [];
  const place = first && /rules\[(\d+)\]/.exec(first.field);
  return first && place ? `Rule ${Number(place[1]) + 1}: ${first.message}` : sentence(error);
}

/** Ask for confirmation before the page is left with unsaved changes. */
function Leaving({ isChanged }: { isChanged: boolean }) {
  const blocker = useBlocker(isChanged);
  useEffect(() => {
    if (!isChanged) return;
    const ask = (event: BeforeUnloadEvent) => event.preventDefault();
    window.addEventListener("beforeunload", ask);
    return () => window.removeEventListener("beforeunload", ask);
  }, [isChanged]);
  return (
    <Dialog
      open={blocker.state === "blocked"}
      onOpenChange={() => blocker.reset?.()}
      title="Leave without saving?"
      description="Your changes on this page are not saved."
      footer={
        <>
          <Button onClick={() => blocker.reset?.()}>Cancel</Button>
          <Button kind="primary" onClick={() => blocker.proceed?.()}>
            Leave
          </Button>
        </>
      }
    />
  );
}
