import { useMutation } from "@tanstack/react-query";
import { type FormEvent, type ReactNode, useEffect, useState } from "react";
import { useBlocker } from "react-router";
import { ApiError, sentence } from "@/api/errors";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Notice } from "@/ui/notice";
import { toast } from "@/ui/toast";

/** A section of a settings page: what it is about, and its fields. A page with one section needs no title of it. */
export function Section({ title, text, children }: { title?: string; text?: ReactNode; children: ReactNode }) {
  return (
    <section className="flex flex-col gap-4">
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
}

/** One form: Save is there when something was changed, the server's complaints stand under their fields. */
export function Form<T extends object>({ initial, save, children, saved = "Saved.", action = "Save" }: Props<T>) {
  const [values, setValues] = useState(initial);
  const names = Object.keys(values) as (keyof T)[];
  const changed = names.filter((name) => JSON.stringify(values[name]) !== JSON.stringify(initial[name]));
  const isChanged = changed.length > 0;
  const store = useMutation({
    mutationFn: () => save(Object.fromEntries(changed.map((name) => [name, values[name]])) as Partial<T>),
    onSuccess: () => toast(saved, { kind: "ok" }),
  });
  const refused = store.error instanceof ApiError ? store.error : null;
  const isFieldError = (refused?.fields ?? []).some((one) => names.some((name) => one.field.endsWith(String(name))));
  // What the server has now is the new beginning; what is being typed stays.
  const serial = JSON.stringify(initial);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the text stands for the object
  useEffect(() => setValues(initial), [serial]);

  function onSubmit(event: FormEvent) {
    event.preventDefault();
    if (isChanged) store.mutate();
  }

  return (
    <form onSubmit={onSubmit} className="flex flex-col gap-4" noValidate>
      {children({
        values,
        set: (name, value) => setValues((old) => ({ ...old, [name]: value })),
        error: (name) => refused?.field(name),
      })}
      {store.error && !isFieldError && <Notice kind="error">{sentence(store.error)}</Notice>}
      <div className="flex gap-2">
        <Button type="submit" kind="primary" disabled={!isChanged || store.isPending}>
          {store.isPending ? "Saving" : action}
        </Button>
        {isChanged && <Button onClick={() => setValues(initial)}>Reset</Button>}
      </div>
      <Leaving isChanged={isChanged && !store.isPending && !store.isSuccess} />
    </form>
  );
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
