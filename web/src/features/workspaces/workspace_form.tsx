/** The form for a new workspace: its name, a preset, and the template's parameters. */
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, type ReactNode, useEffect, useRef, useState } from "react";
import { ApiError, sentence } from "@/api/errors";
import type { TemplateView } from "@/api/types.gen";
import { listWorkspaces, type NewWorkspace } from "@/api/workspaces";
import { type Entries, initialEntries, toValues } from "@/chat/template_parameters";
import { ParameterFields } from "@/features/workspaces/parameter_fields";
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
  const [name, setName] = useState("");
  const [entries, setEntries] = useState<Entries>(() => begin(usual));
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const { data } = useQuery({ queryKey: ["workspaces"], queryFn: listWorkspaces, retry: false });
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
          placeholder="amber-otter"
          autoComplete="off"
          autoCapitalize="none"
          spellCheck={false}
          value={name}
          onChange={(event) => setName(event.target.value)}
          hint="Lowercase letters, digits and hyphens. Without a name, it gets one of two words."
          error={refused?.fields.find((one) => one.field === "name")?.message}
        />
      )}
      {error !== null && !isShown && <Notice kind="error">{sentence(error)}</Notice>}
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
  onCreate: (body: NewWorkspace) => Promise<unknown>;
}

/** The form in a dialog, for the picker and the settings. */
export function NewWorkspaceDialog({ template, onClose, onCreate }: DialogProps) {
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title={`New workspace: ${template.display_name || template.name}`}
      description={template.description.replaceAll("`", "")}
    >
      <WorkspaceForm
        template={template}
        action="Create"
        onSubmit={onCreate}
        buttons={<Button onClick={onClose}>Cancel</Button>}
      />
    </Dialog>
  );
}
