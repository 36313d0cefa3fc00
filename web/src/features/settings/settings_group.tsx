import { useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { getGroup, putGroup } from "@/api/admin";
import { sentence } from "@/api/errors";
import { useSelf } from "@/state/login_session";
import { queryClient } from "@/state/queries";
import { Notice } from "@/ui/notice";
import { type Draft, Form } from "./settings_form";

interface View<T> {
  values: T;
  pinned: string[];
}

interface Props<T, F extends object> {
  group: string;
  /** Converts the stored values for the form. */
  read: (values: T) => F;
  /** Converts the form's values for the server. */
  write?: (changed: Partial<F>) => unknown;
  children: (draft: Draft<F>) => ReactNode;
}

/** A form for a group of server settings. Settings locked by the operator cannot be changed. */
export function Group<T, F extends object>({ group, read, write = (changed) => changed, children }: Props<T, F>) {
  const isAdmin = useSelf().role === "admin";
  const key = ["settings", group];
  const { data, error } = useQuery({ queryKey: key, queryFn: () => getGroup<View<T>>(group) });
  if (error) return <Notice kind="error">{sentence(error)}</Notice>;
  if (!data) return null;
  return (
    <>
      {data.pinned.length > 0 && (
        <Notice>The environment of the server decides: {data.pinned.join(", ")}. It cannot be changed here.</Notice>
      )}
      <fieldset disabled={!isAdmin} className="contents">
        <Form
          initial={read(data.values)}
          save={async (changed) => {
            queryClient.setQueryData(key, await putGroup<View<T>>(group, write(changed)));
          }}
        >
          {children}
        </Form>
      </fieldset>
    </>
  );
}
