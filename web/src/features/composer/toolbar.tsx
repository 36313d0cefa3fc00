import { Check, ClipboardList, CornerDownRight, ListPlus, Plus, SendHorizontal, Square } from "lucide-react";
import { type ReactNode, Suspense, useRef } from "react";
import type { BusyBehavior } from "@/api/types.gen";
import type { PermissionMode } from "@/chat/types";
import { ModeSwitch } from "@/features/composer/mode_switch";
import { type ModelChoice, ModelPicker } from "@/features/composer/model_picker";
import { WorkspacePicker } from "@/features/composer/workspace_picker";
import { Button, IconButton } from "@/ui/button";
import { cx } from "@/ui/cx";
import { pulsing } from "@/ui/endless_animations";
import { lazyPart } from "@/ui/lazy_part";
import { hint } from "@/ui/tooltip";

const ServerPicker = lazyPart(async () => (await import("@/features/mcp/server_picker")).ServerPicker);
const SendMenu = lazyPart(async () => (await import("@/features/composer/send_menu")).SendMenu);

/** The controls below the message box. */
export interface ToolbarControls {
  busy: boolean;
  stopping: boolean;
  onStop: () => void;
  /** Whether the next queued message is sent when the turn stops. */
  hasQueue?: boolean;
  choice: ModelChoice;
  onChoose: (choice: ModelChoice) => void;
  planMode: boolean;
  onPlanMode: (on: boolean) => void;
  permissionMode: PermissionMode;
  /** null in a subagent's chat: the mode of the main chat applies. */
  onPermissionMode: ((mode: PermissionMode) => void) | null;
  workspaceId: string | null;
  onWorkspace: (id: string | null) => void;
  /** The MCP servers of the chat; null for those that new chats use by default. */
  serverIds: string[] | null;
  onServers: (ids: string[]) => void;
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
  onSend: (behavior: BusyBehavior) => void;
  busySend: "queue" | "steer";
  enterSends: boolean;
}

/** Files, model, workspace and modes on the left; stop and send on the right. Long model names are truncated. */
export function Toolbar(props: Props) {
  const { busy, stopping, planMode } = props;
  const hasWays = busy && !props.editing && props.canSend;
  const steers = props.busySend === "steer";
  const Icon = props.editing ? Check : !busy ? SendHorizontal : steers ? CornerDownRight : ListPlus;
  const picker = useRef<HTMLInputElement>(null);
  return (
    <div className="@container flex items-center gap-1 px-2 pb-2 max-[22.5rem]:flex-wrap">
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
        <span className="@max-[36rem]:sr-only">Plan</span>
      </Button>
      <Suspense>
        <ServerPicker serverIds={props.serverIds} workspaceId={props.workspaceId} onServers={props.onServers} />
      </Suspense>
      <ModeSwitch mode={props.permissionMode} onMode={props.onPermissionMode} />
      <div className="ml-auto flex shrink-0 items-center gap-1">
        {/* On a small screen there is no room for all of them. */}
        {props.extra && <div className={cx("flex", busy && "max-sm:hidden")}>{props.extra}</div>}
        {busy && (
          <Button
            size="small"
            onClick={props.onStop}
            disabled={stopping}
            aria-keyshortcuts="Escape"
            aria-description={props.hasQueue ? "The next queued message is sent" : undefined}
            {...hint(props.hasQueue ? "Stop (the next queued message is sent)" : "Stop", "Esc Esc")}
          >
            <Square aria-hidden className="size-3 fill-current" />
            {/* On a small screen there is no room for the word. */}
            <span className="max-sm:sr-only">{stopping ? "Stopping" : "Stop"}</span>
          </Button>
        )}
        {hasWays && (
          <Suspense>
            <SendMenu busySend={props.busySend} enterSends={props.enterSends} onSend={props.onSend} />
          </Suspense>
        )}
        <IconButton
          label={props.editing ? "Save" : busy ? (steers ? "Steer the agent" : "Queue message") : "Send message"}
          kind="primary"
          disabled={!props.canSend}
          onClick={() => props.onSend(props.busySend)}
          className="rounded-full!"
        >
          <Icon ref={props.isSending ? pulsing : null} />
        </IconButton>
      </div>
    </div>
  );
}
