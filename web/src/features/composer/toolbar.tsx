import { ClipboardList, Plus, SendHorizontal, Square } from "lucide-react";
import { type ReactNode, useRef } from "react";
import { type ModelChoice, ModelPicker } from "@/features/composer/model_picker";
import { WorkspacePicker } from "@/features/composer/workspace_picker";
import { Button, IconButton } from "@/ui/button";
import { cx } from "@/ui/cx";
import { pulsing } from "@/ui/motion";

/** The controls below the message box. */
export interface ToolbarControls {
  busy: boolean;
  stopping: boolean;
  onStop: () => void;
  choice: ModelChoice;
  onChoose: (choice: ModelChoice) => void;
  planMode: boolean;
  onPlanMode: (on: boolean) => void;
  workspaceId: string | null;
  onWorkspace: (id: string | null) => void;
  /** Controls to the left of the send button. */
  extra?: ReactNode;
}

interface Props extends ToolbarControls {
  editing: unknown;
  modelsOpen: boolean;
  onModelsOpen: (open: boolean) => void;
  canSend: boolean;
  isSending: boolean;
  onFiles: (files: File[]) => void;
  onSend: () => void;
}

/** Files, model, workspace and plan mode on the left; stop and send on the right. Long model names are truncated. */
export function Toolbar(props: Props) {
  const { busy, stopping, planMode } = props;
  const picker = useRef<HTMLInputElement>(null);
  return (
    <div className="flex items-center gap-1 px-2 pb-2">
      <input
        ref={picker}
        type="file"
        multiple
        hidden
        onChange={(event) => {
          props.onFiles([...(event.target.files ?? [])]);
          event.target.value = "";
        }}
      />
      <IconButton label="Attach files" onClick={() => picker.current?.click()}>
        <Plus />
      </IconButton>
      <ModelPicker
        choice={props.choice}
        onChoose={props.onChoose}
        open={props.modelsOpen}
        onOpenChange={props.onModelsOpen}
      />
      <WorkspacePicker workspaceId={props.workspaceId} onChoose={props.onWorkspace} />
      <Button
        size="small"
        kind="ghost"
        aria-pressed={planMode}
        onClick={() => props.onPlanMode(!planMode)}
        className={cx(planMode ? "bg-bg3 text-accent!" : "text-muted!")}
      >
        <ClipboardList aria-hidden className="size-3.5" />
        <span className="max-sm:sr-only">Plan</span>
      </Button>
      <div className="ml-auto flex shrink-0 items-center gap-1">
        {props.extra}
        {busy && (
          <Button size="small" onClick={props.onStop} disabled={stopping} aria-keyshortcuts="Escape">
            <Square aria-hidden className="size-3 fill-current" />
            {/* On a small screen there is no room for the word. */}
            <span className="max-sm:sr-only">{stopping ? "Stopping" : "Stop"}</span>
          </Button>
        )}
        <IconButton
          label={props.editing ? "Save" : busy ? "Queue message" : "Send message"}
          kind="primary"
          disabled={!props.canSend}
          onClick={props.onSend}
          className="rounded-full!"
        >
          <SendHorizontal ref={props.isSending ? pulsing : null} />
        </IconButton>
      </div>
    </div>
  );
}
