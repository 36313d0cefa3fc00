import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { deleteKind, type KindScope, listKinds, putKind } from "@/api/account";
import { ApiError, sentence } from "@/api/errors";
import type { Effort, KindBody, KindView } from "@/api/types.gen";
import { useSelf } from "@/state/login_session";
import { queryClient, useKnownModels } from "@/state/queries";
import { Button } from "@/ui/button";
import { Confirm, Dialog } from "@/ui/dialog";
import { TextArea, TextField } from "@/ui/field";
import { Notice } from "@/ui/notice";
import { Select } from "@/ui/select";
import { Switch } from "@/ui/switch";
import { toast } from "@/ui/toast";
import { type KindDraft, readKind, writeKind } from "./agent_kind_draft";
import { Table } from "./responsive_table";
import { Section } from "./settings_form";

const KEY = ["agent-kinds"];
const EFFORTS: Effort[] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
const SOURCES: Record<string, string> = { builtin: "Built in", deployment: "Server", user: "You" };

/** The kinds of subagents: the built-in ones, those of the server, and the user's own. */
export function AgentKinds() {
  const isAdmin = useSelf().role === "admin";
  const { data, error } = useQuery({ queryKey: KEY, queryFn: listKinds });
  const [editing, setEditing] = useState<KindView | "new" | null>(null);
  const [deleting, setDeleting] = useState<KindView | null>(null);
  const remove = useMutation({
    mutationFn: (kind: KindView) => deleteKind(kind.name, kind.source as KindScope),
    onSettled: () => queryClient.invalidateQueries({ queryKey: KEY }),
    onError: (failure) => toast(sentence(failure), { kind: "error" }),
  });
  const mayChange = (kind: KindView) => kind.source === "user" || (kind.source === "deployment" && isAdmin);
  return (
    <Section text="Agents choose one of these kinds when they start a subagent. Workspaces can define more.">
      {error && <Notice kind="error">{sentence(error)}</Notice>}
      <Button className="self-start" onClick={() => setEditing("new")}>
        Create a kind
      </Button>
      {data && (
        <Table
          label="Kinds of subagents"
          rows={data.kinds}
          keyOf={(kind) => `${kind.source}/${kind.name}`}
          empty="No kinds."
          columns={[
            { title: "Name", cell: (kind) => <span className="font-mono">{kind.name}</span> },
            { title: "Description", cell: (kind) => kind.description },
            {
              title: "Source",
              cell: (kind) => (
                <span className="sm:whitespace-nowrap">
                  {SOURCES[kind.source] ?? kind.source}
                  {kind.hidden_by && ", hidden by the server's kind"}
                </span>
              ),
            },
            {
              title: "",
              right: true,
              cell: (kind) =>
                mayChange(kind) && (
                  <span className="flex justify-end gap-1">
                    <Button size="small" aria-label={`Edit ${kind.name}`} onClick={() => setEditing(kind)}>
                      Edit
                    </Button>
                    <Button
                      size="small"
                      kind="danger"
                      aria-label={`Delete ${kind.name}`}
                      onClick={() => setDeleting(kind)}
                    >
                      Delete
                    </Button>
                  </span>
                ),
            },
          ]}
        />
      )}
      {editing && (
        <KindDialog kind={editing === "new" ? null : editing} isAdmin={isAdmin} onClose={() => setEditing(null)} />
      )}
      {deleting && (
        <Confirm
          open
          onOpenChange={() => setDeleting(null)}
          title={`Delete ${deleting.name}?`}
          text="Subagents that were started with it go on."
          action="Delete"
          danger
          onConfirm={() => remove.mutate(deleting)}
        />
      )}
    </Section>
  );
}

interface DialogProps {
  kind: KindView | null;
  isAdmin: boolean;
  onClose: () => void;
}

function KindDialog({ kind, isAdmin, onClose }: DialogProps) {
  const models = useKnownModels();
  const [draft, setDraft] = useState<KindDraft>(() => readKind(kind));
  const set = (part: Partial<KindDraft>) => setDraft((before) => ({ ...before, ...part }));
  const save = useMutation({
    mutationFn: (body: KindBody) => putKind(draft.name.trim(), draft.scope, body),
    onSuccess: () => {
      void queryClient.invalidateQueries({ queryKey: KEY });
      onClose();
    },
  });
  const refused = save.error instanceof ApiError ? save.error : null;
  return (
    <Dialog
      open
      onOpenChange={onClose}
      title={kind ? `Edit ${kind.name}` : "Create a kind"}
      wide
      footer={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button
            kind="primary"
            disabled={!draft.name.trim() || !draft.description.trim() || save.isPending}
            onClick={() => save.mutate(writeKind(draft))}
          >
            Save
          </Button>
        </>
      }
    >
      <div className="flex flex-col gap-4">
        {save.error && !refused?.fields.length && <Notice kind="error">{sentence(save.error)}</Notice>}
        {!kind && (
          <TextField
            label="Name"
            hint="A short word, such as reviewer. Agents use it to start a subagent of this kind."
            value={draft.name}
            onChange={(e) => set({ name: e.target.value })}
            error={refused?.field("name")}
          />
        )}
        {!kind && isAdmin && (
          <Select
            label="For"
            value={draft.scope}
            onChange={(scope) => set({ scope: scope as KindScope })}
            options={[
              { value: "user", label: "You" },
              { value: "deployment", label: "All users of this server" },
            ]}
          />
        )}
        <TextField
          label="Description"
          hint="Agents read it to choose a kind."
          value={draft.description}
          onChange={(e) => set({ description: e.target.value })}
          error={refused?.field("description")}
        />
        <TextArea
          label="Prompt"
          hint="Instructions that every subagent of this kind gets before its task."
          rows={6}
          value={draft.prompt}
          onChange={(e) => set({ prompt: e.target.value })}
          error={refused?.field("prompt")}
        />
        <TextField
          label="Tools"
          hint="Names with spaces between them, such as read_file execute. Empty allows every tool of a subagent."
          value={draft.tools}
          onChange={(e) => set({ tools: e.target.value })}
          error={refused?.field("tools")}
        />
        <Switch
          label="Read only"
          hint="Commands run in a read-only view of the workspace, and no tool changes files."
          checked={draft.readOnly}
          onChange={(readOnly) => set({ readOnly })}
        />
        <div className="grid gap-4 sm:grid-cols-3">
          <Select
            label="Model"
            value={draft.model}
            onChange={(model) => set({ model })}
            options={[
              { value: "", label: "The usual one" },
              ...models.map((one) => ({ value: one.id, label: one.display_name || one.model })),
            ]}
            error={refused?.field("model_config_id")}
          />
          <Select
            label="Effort"
            value={draft.effort}
            onChange={(effort) => set({ effort: effort as Effort | "" })}
            options={[{ value: "", label: "The model's own" }, ...EFFORTS.map((one) => ({ value: one, label: one }))]}
            error={refused?.field("reasoning_effort")}
          />
          <TextField
            label="Time limit, in minutes"
            placeholder="The server's"
            inputMode="numeric"
            value={draft.minutes}
            onChange={(e) => set({ minutes: e.target.value })}
            error={refused?.field("max_minutes")}
          />
        </div>
      </div>
    </Dialog>
  );
}
