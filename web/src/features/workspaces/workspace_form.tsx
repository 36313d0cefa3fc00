/** The form for a new workspace: its name, a preset, and the template's parameters. */
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, type ReactNode, useEffect, useRef, useState } from "react";
import { Link } from "react-router";
import { ApiError, hasCode, sentence } from "@/api/errors";
import type { TemplateView } from "@/api/types.gen";
import { listWorkspaces, type NewWorkspace, type Requested, type WorkspaceRow } from "@/api/workspaces";
import { type Entries, initialEntries, repositoryName, toValues } from "@/chat/template_parameters";
import { describe, isStartingUp, startupProblem } from "@/chat/workspace_health";
import { ParameterFields } from "@/features/workspaces/parameter_fields";
import { WorkspaceStartup } from "@/features/workspaces/workspace_startup";
import { queryClient } from "@/state/queries";
import { Commands } from "@/ui/backtick_code";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { TextField } from "@/ui/field";
import { Notice } from "@/ui/notice";
import { Select } from "@/ui/select";

interface FormProps {
  template: TemplateView;
  /** Values to begin with, such as those that an agent has chosen. */
  given?: Record<string, unknown>;
  action: string;
  /** Sends the values. A refusal is shown at its fields. */
  onSubmit: (body: NewWorkspace) => Promise<unknown>;
  /** Whether the name is asked for as well. */
  named?: boolean;
  /** Further buttons before the main one. */
  buttons?: ReactNode;
}

export function WorkspaceForm({ template, given, action, onSubmit, named = true, buttons }: FormProps) {
  const form = useRef<HTMLFormElement>(null);
  const usual = template.presets.find((one) => one.default)?.id ?? "";
  const [preset, setPreset] = useState(usual);
  // Until a name is typed, that of the repository is proposed.
  const [typed, setName] = useState<string | null>(null);
  const [entries, setEntries] = useState<Entries>(() => begin(usual));
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const { data } = useQuery({ queryKey: ["workspaces"], queryFn: listWorkspaces, retry: false });
  const taken = data?.items.map((one) => one.name) ?? [];
  const proposed = named && "repository" in entries ? repositoryName(String(entries.repository), taken) : "";
  const name = typed ?? proposed;
  const refused = error instanceof ApiError ? error : null;
  const isShown = refused?.fields.some((one) => one.field === "name" || one.field.includes("parameters."));

  useEffect(() => {
    if (error !== null) form.current?.querySelector<HTMLElement>("[aria-invalid=true]")?.focus();
  }, [error]);

  function begin(id: string): Entries {
    const values = template.presets.find((one) => one.id === id)?.parameters ?? {};
    return initialEntries(template.parameters, { ...values, ...given });
  }

  async function submit(event: FormEvent) {
    event.preventDefault();
    event.stopPropagation();
    setBusy(true);
    setError(null);
    try {
      await onSubmit({
        ...(name.trim() ? { name: name.trim() } : {}),
        parameters: toValues(template.parameters, entries),
      });
    } catch (failure) {
      setError(failure);
    } finally {
      setBusy(false);
    }
  }

  return (
    <form ref={form} onSubmit={submit} noValidate className="flex flex-col gap-4">
      {template.presets.length > 0 && (
        <Select
          label="Preset"
          value={preset}
          onChange={(id) => {
            setPreset(id);
            setEntries(begin(id));
          }}
          options={[
            ...(usual ? [] : [{ value: "", label: "None" }]),
            ...template.presets.map((one) => ({ value: one.id, label: one.name })),
          ]}
          hint={template.presets.find((one) => one.id === preset)?.description ?? ""}
        />
      )}
      <ParameterFields
        template={template.name}
        parameters={template.parameters}
        entries={entries}
        onChange={(key, entry) => setEntries((old) => ({ ...old, [key]: entry }))}
        refused={refused}
        workspaces={data?.items ?? []}
      />
      {named && (
        <TextField
          label="Name (optional)"
          placeholder="quick-shrew"
          autoComplete="off"
          autoCapitalize="none"
          spellCheck={false}
          value={name}
          onChange={(event) => setName(event.target.value)}
          hint="Lowercase letters, digits and hyphens. Without a name, Rookery chooses one, such as quick-shrew."
          error={refused?.fields.find((one) => one.field === "name")?.message}
        />
      )}
      {error !== null && !isShown && (
        <Notice kind="error">
          {sentence(error)}
          {hasCode(error, "quota_exceeded") && (
            <>
              {" "}
              <Link to="/settings/own-workspaces" className="text-accent underline">
                Your workspaces
              </Link>
            </>
          )}
        </Notice>
      )}
      <div className="flex flex-wrap justify-end gap-2">
        {buttons}
        <Button type="submit" kind="primary" disabled={busy}>
          {busy ? "Creating" : action}
        </Button>
      </div>
    </form>
  );
}

interface DialogProps {
  template: TemplateView;
  onClose: () => void;
  onCreate: (body: NewWorkspace) => Promise<Requested>;
}

/** The form in a dialog, for the picker and the settings. It then shows the start, and closes when that has succeeded. */
export function NewWorkspaceDialog({ template, onClose, onCreate }: DialogProps) {
  const [made, setMade] = useState<WorkspaceRow | null>(null);
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title={`New workspace: ${template.display_name || template.name}`}
      description={template.description.replaceAll("`", "")}
    >
      {made ? (
        <Start made={made} onClose={onClose} />
      ) : (
        <WorkspaceForm
          template={template}
          action="Create"
          onSubmit={async (body) => {
            const { workspace, operation } = await onCreate(body);
            setMade({ ...workspace, operation: operation ?? null });
          }}
          buttons={<Button onClick={onClose}>Cancel</Button>}
        />
      )}
    </Dialog>
  );
}

/** The start of a new workspace: its log, and its failure. */
function Start({ made, onClose }: { made: WorkspaceRow; onClose: () => void }) {
  const { data } = useQuery({
    queryKey: ["workspaces"],
    queryFn: listWorkspaces,
    retry: false,
    refetchInterval: (query) => {
      const found = query.state.data?.items.find((one) => one.id === made.id);
      return !found || isStartingUp(found) ? 1_000 : false;
    },
  });
  useEffect(() => void queryClient.invalidateQueries({ queryKey: ["workspaces"] }), []);
  const listed = data?.items.find((one) => one.id === made.id);
  const workspace = listed ?? made;
  const isReady = listed?.status === "running" && !isStartingUp(listed) && startupProblem(listed) === null;
  const close = useRef(onClose);
  close.current = onClose;
  useEffect(() => {
    if (isReady) close.current();
  }, [isReady]);
  return (
    <div className="flex flex-col gap-4">
      <WorkspaceStartup workspace={workspace} />
      {workspace.status === "failed" && (
        <Notice kind="error">
          <Commands text={describe(workspace)} />
        </Notice>
      )}
      <div className="flex justify-end">
        <Button onClick={onClose}>Close</Button>
      </div>
    </div>
  );
}
