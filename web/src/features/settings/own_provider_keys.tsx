import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { ApiError, sentence } from "@/api/errors";
import { del, get, put } from "@/api/http";
import type { ItemsOfProviderKeyView, ProviderKeyView } from "@/api/types.gen";
import { keys, queryClient } from "@/state/queries";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { TextField } from "@/ui/field";
import { toast } from "@/ui/toast";
import { Table } from "./responsive_table";
import { Section } from "./settings_form";

const KEY = ["provider-keys"];
const nameOf = (one: ProviderKeyView) => one.provider.display_name || one.provider.name;

/** The user's own provider keys, where the server allows them. Keys are write-only. */
export function Keys() {
  const { data } = useQuery({ queryKey: KEY, queryFn: () => get<ItemsOfProviderKeyView>("/me/provider-keys") });
  const [editing, setEditing] = useState<ProviderKeyView | null>(null);
  const forget = useMutation({
    mutationFn: (id: string) => del(`/me/provider-keys/${id}`),
    onSuccess: changed,
    onError: (error) => toast(sentence(error), { kind: "error" }),
  });
  return (
    <Section text="With a key of your own, calls are billed to you and not to this server.">
      <Table
        label="Provider keys"
        rows={data?.items ?? []}
        keyOf={(one) => one.provider.id}
        empty="No provider accepts keys of users."
        columns={[
          { title: "Provider", cell: nameOf },
          {
            title: "Key",
            cell: (one) => (one.has_user_key ? "Yours" : one.has_central_key ? "The server's" : "None"),
          },
          {
            title: "",
            right: true,
            cell: (one) => (
              <span className="inline-flex gap-1.5">
                {one.has_user_key && (
                  <Button size="small" kind="danger" onClick={() => forget.mutate(one.provider.id)}>
                    Remove
                  </Button>
                )}
                {one.user_key_allowed && (
                  <Button size="small" onClick={() => setEditing(one)}>
                    {one.has_user_key ? "Replace" : "Add"}
                  </Button>
                )}
              </span>
            ),
          },
        ]}
      />
      {editing && <KeyDialog entry={editing} onClose={() => setEditing(null)} />}
    </Section>
  );
}

function changed() {
  void queryClient.invalidateQueries({ queryKey: KEY });
  void queryClient.invalidateQueries({ queryKey: keys.models });
}

function KeyDialog({ entry, onClose }: { entry: ProviderKeyView; onClose: () => void }) {
  const [key, setKey] = useState("");
  const save = useMutation({
    mutationFn: () => put(`/me/provider-keys/${entry.provider.id}`, { api_key: key }),
    onSuccess: () => {
      changed();
      onClose();
    },
  });
  const field = save.error instanceof ApiError ? save.error.field("api_key") : undefined;
  return (
    <Dialog
      open
      onOpenChange={onClose}
      title={`Key for ${nameOf(entry)}`}
      footer={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" disabled={!key || save.isPending} onClick={() => save.mutate()}>
            Save
          </Button>
        </>
      }
    >
      <TextField
        label="API key"
        type="password"
        autoComplete="off"
        value={key}
        onChange={(e) => setKey(e.target.value)}
        hint="Stored encrypted; never shown again."
        error={field ?? (save.error ? sentence(save.error) : undefined)}
      />
    </Dialog>
  );
}
