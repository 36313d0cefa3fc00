import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { sentence } from "@/api/errors";
import { newId } from "@/api/id";
import { createWorkspace, type NewWorkspace } from "@/api/workspaces";
import { WorkspaceForm } from "@/features/workspaces/workspace_form";
import { useTemplates, whyNone } from "@/state/templates";
import { Commands } from "@/ui/backtick_code";
import { Button } from "@/ui/button";
import { Notice } from "@/ui/notice";
import { Choices } from "@/ui/radio_choices";

const LATER = {
  value: "",
  label: "When a task needs one",
  hint: "The agent creates a workspace by itself before it runs a command or edits a file. You can also choose one in any chat.",
};
const NONE = {
  value: "",
  label: "None",
  hint: "Agents answer, but cannot run commands or edit files until this machine can start workspaces.",
};

/** The choice of the first workspace. `onDone` gets its id, or null without one. */
export function WorkspaceStep({ onDone }: { onDone: (workspace: string | null) => void }) {
  const templates = useTemplates();
  const [choice, setChoice] = useState("");
  const make = useMutation({
    mutationFn: (body: NewWorkspace) => createWorkspace(choice, newId(), body),
    onSuccess: ({ workspace }) => onDone(workspace.id),
  });
  const problem = whyNone(templates.data?.items);
  const offered = (templates.data?.items ?? []).filter((one) => one.enabled && !one.unavailable);
  const chosen = offered.find((one) => one.name === choice);
  const options = offered.map((one) => ({
    value: one.name,
    label: one.display_name || one.name,
    hint: one.description.replaceAll("`", ""),
  }));
  return (
    <div className="flex flex-col gap-4">
      {problem && (
        <Notice kind="warn">
          <p className="mb-1 font-medium">Chats work, but agents cannot have a workspace on this machine yet.</p>
          <Commands text={problem} />
        </Notice>
      )}
      <Choices label="Workspace" value={choice} onChange={setChoice} options={[problem ? NONE : LATER, ...options]} />
      {chosen && chosen.parameters.length > 0 ? (
        <WorkspaceForm
          key={chosen.name}
          template={chosen}
          action="Continue"
          named={false}
          onSubmit={(body) => make.mutateAsync(body)}
        />
      ) : (
        <>
          {make.error && <Notice kind="error">{sentence(make.error)}</Notice>}
          <Button
            kind="primary"
            className="h-9"
            disabled={make.isPending}
            onClick={() => (choice ? make.mutate({}) : onDone(null))}
          >
            {make.isPending ? "Preparing" : "Continue"}
          </Button>
        </>
      )}
    </div>
  );
}
