import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { sentence } from "@/api/errors";
import { newId } from "@/api/id";
import { createWorkspace } from "@/api/workspaces";
import { useTemplates, whyNone } from "@/state/templates";
import { Button } from "@/ui/button";
import { Choices } from "@/ui/choices";
import { Commands } from "@/ui/commands";
import { Notice } from "@/ui/notice";

// Shipped templates that need no parameters.
const SIMPLE = ["blank", "python", "node"];
const NONE = {
  value: "",
  label: "None for now",
  hint: "Agents answer, but cannot run commands or edit files. You can choose a workspace later in any chat.",
};

/** The choice of the first workspace. `onDone` gets its id, or null without one. */
export function WorkspaceStep({ onDone }: { onDone: (workspace: string | null) => void }) {
  const templates = useTemplates();
  const [choice, setChoice] = useState("");
  const make = useMutation({
    mutationFn: () => createWorkspace(choice, newId()),
    onSuccess: ({ workspace }) => onDone(workspace.id),
  });
  const problem = whyNone(templates.data?.items);
  const simple = (templates.data?.items ?? []).filter((one) => SIMPLE.includes(one.name) && !one.unavailable);
  const options = simple.map((one) => ({
    value: one.name,
    label: one.display_name || one.name,
    hint: one.description,
  }));
  return (
    <div className="flex flex-col gap-4">
      {problem && (
        <Notice kind="warn">
          <p className="mb-1 font-medium">Chats work, but agents cannot have a workspace on this machine yet.</p>
          <Commands text={problem} />
        </Notice>
      )}
      <Choices label="Workspace" value={choice} onChange={setChoice} options={[NONE, ...options]} />
      {make.error && <Notice kind="error">{sentence(make.error)}</Notice>}
      <Button
        kind="primary"
        className="h-9"
        disabled={make.isPending}
        onClick={() => (choice ? make.mutate() : onDone(null))}
      >
        {make.isPending ? "Preparing" : "Continue"}
      </Button>
    </div>
  );
}
