import { useMutation } from "@tanstack/react-query";
import { type FormEvent, type ReactNode, useEffect, useState } from "react";
import { useBlocker } from "react-router";
import { ApiError, sentence } from "@/api/errors";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Notice } from "@/ui/notice";
import { toast } from "@/ui/toast";

/** A section of a settings page: what it is about, and its fields. A page with one section needs no title of it. */
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
  /** What the server found wrong with a field. */
  error: (name: string) => string | undefined;
}

interface Props<T> {
  initial: T;
  /** Only what was changed is sent. */
  save: (changed: Partial<T>) => Promise<unknown>;
  children: (draft: Draft<T>) => ReactNode;
  saved?: string;
  action?: string;
  /** Whether the fields are as in the beginning again once it is saved. */
  clears?: boolean;
  /** Whether there is enough to send. */
  isReady?: (values: T) => boolean;
}

/** One form: Save is there when something was changed, the server's complaints stand under their fields. */
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
  // What the server has now is the new beginning; what is being typed stays.
  const serial = JSON.stringify(initial);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the text stands for the object
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

/** What was wrong, for a form whose fields stand in a list of rules: the rule is named as the page numbers it. */
export function complaintOf(error: unknown): string {
  const [first] = error instanceof ApiError ? error.fields : [];
  const place = first && /rules\[(\d+)\]/.exec(first.field);
  return first && place ? `Rule ${Number(place[1]) + 1}: ${first.message}` : sentence(error);
}

/** Asks before changes are lost. */
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
      description="What you changed on this page is not saved."
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
