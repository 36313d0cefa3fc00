import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { ApiError, sentence } from "@/api/errors";
import { del, get, post } from "@/api/http";
import type { ItemsOfTokenView, NewTokenView, Scope } from "@/api/types.gen";
import { useSelf } from "@/state/login_session";
import { queryClient } from "@/state/queries";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { TextField } from "@/ui/field";
import { Ago, Moment } from "@/ui/relative_time";
import { Select } from "@/ui/select";
import { toast } from "@/ui/toast";
import { Table } from "./responsive_table";
import { Secret } from "./secret_once";
import { Section } from "./settings_form";

const KEY = ["tokens"];
const SCOPES: { value: Scope; label: string }[] = [
  { value: "chat:write", label: "Chats: read and change" },
  { value: "chat:read", label: "Chats: read" },
  { value: "usage:read", label: "Usage: read" },
  { value: "admin", label: "Administration" },
  { value: "all", label: "Everything" },
];

/** The user's API tokens. */
export function Tokens() {
  const { data } = useQuery({ queryKey: KEY, queryFn: () => get<ItemsOfTokenView>("/tokens") });
  const [isOpen, setOpen] = useState(false);
  const remove = useMutation({
    mutationFn: (id: string) => del(`/tokens/${id}`),
    onSuccess: () => queryClient.invalidateQueries({ queryKey: KEY }),
    onError: (error) => toast(sentence(error), { kind: "error" }),
  });
  return (
    <Section text="For programs that talk to this server as you. A token never has more rights than you.">
      <Button kind="primary" className="self-start" onClick={() => setOpen(true)}>
        New token
      </Button>
      <Table
        label="API tokens"
        rows={data?.items ?? []}
        keyOf={(one) => one.id}
        empty="No tokens yet."
        columns={[
          { title: "Name", cell: (one) => one.name },
          { title: "Allows", cell: (one) => one.scopes.join(", ") },
          { title: "Ends", cell: (one) => <Moment at={one.expires_at} /> },
          { title: "Last used", cell: (one) => (one.last_used_at ? <Ago at={one.last_used_at} /> : "Never") },
          {
            title: "",
            right: true,
            cell: (one) => (
              <Button
                size="small"
                kind="danger"
                onClick={() => remove.mutate(one.id)}
                aria-label={`Revoke ${one.name}`}
              >
                Revoke
              </Button>
            ),
          },
        ]}
      />
      {isOpen && <NewToken onClose={() => setOpen(false)} />}
    </Section>
  );
}

function NewToken({ onClose }: { onClose: () => void }) {
  const me = useSelf();
  const [name, setName] = useState("");
  const [scope, setScope] = useState<Scope>("chat:write");
  const [days, setDays] = useState("90");
  const create = useMutation({
    mutationFn: () => post<NewTokenView>("/tokens", { name, scopes: [scope], expires_in_days: Number(days) }),
    onSuccess: () => queryClient.invalidateQueries({ queryKey: KEY }),
  });
  const refused = create.error instanceof ApiError ? create.error : null;
  if (create.data) {
    return (
      <Dialog
        open
        onOpenChange={onClose}
        title="Your new token"
        description="Copy it now: it is not shown again."
        footer={
          <Button kind="primary" onClick={onClose}>
            Done
          </Button>
        }
      >
        <Secret label="Token" value={create.data.token} />
      </Dialog>
    );
  }
  return (
    <Dialog
      open
      onOpenChange={onClose}
      title="New token"
      footer={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" disabled={!name.trim() || create.isPending} onClick={() => create.mutate()}>
            Create
          </Button>
        </>
      }
    >
      <div className="flex flex-col gap-4">
        <TextField
          label="Name"
          placeholder="laptop"
          value={name}
          onChange={(e) => setName(e.target.value)}
          error={
            refused?.field("name") ?? (create.error && !refused?.fields.length ? sentence(create.error) : undefined)
          }
        />
        <Select
          label="Allows"
          value={scope}
          onChange={(value) => setScope(value as Scope)}
          options={SCOPES.filter((one) => one.value !== "admin" || me.role === "admin")}
          error={refused?.field("scopes")}
        />
        <TextField
          label="Days until it expires"
          inputMode="numeric"
          value={days}
          onChange={(e) => setDays(e.target.value)}
          error={refused?.field("expires_in_days")}
        />
      </div>
    </Dialog>
  );
}
