import type { RefObject } from "react";
import { useStore } from "zustand";
import { sentence } from "@/api/errors";
import type { ChatView } from "@/api/types.gen";
import { filesOf, plainText, type QueueRow, shownQueue } from "@/chat/pending_operations";
import { isActive, type Message, type Part, type PermissionMode, permissionModeOf } from "@/chat/types";
import { Composer, type ComposerHandle } from "@/features/composer/composer";
import { ContextRing } from "@/features/composer/context_ring";
import type { ModelChoice } from "@/features/composer/model_picker";
import { NoWorkspaces } from "@/features/composer/no_workspaces";
import type { Submission } from "@/features/composer/submission";
import { editBanner } from "@/features/conversation/edit_banner";
import type { ChatSession } from "@/state/chat_session";
import { useDisplay, useThreshold } from "@/state/queries";
import { useShownQueue, useShownStatus } from "@/state/session_hooks";
import { toast } from "@/ui/toast";

/** The sent or queued message that is being edited. */
export type Editing = { kind: "message"; message: Message } | { kind: "queued"; row: QueueRow; place: number };

export const showError = (error: unknown) => void toast(sentence(error), { kind: "error" });

interface ChatComposerProps {
  handle: RefObject<ComposerHandle | null>;
  session: ChatSession;
  chat: ChatView | undefined;
  userId: string;
  choice: ModelChoice;
  onChoose: (choice: ModelChoice) => void;
  onPlanMode: (on: boolean) => void;
  onPermissionMode: (mode: PermissionMode) => void;
  onWorkspace: (id: string | null) => void;
  onServers: (ids: string[]) => void;
  onSubmit: (submission: Submission) => Promise<boolean>;
  onCommand: (name: string) => void;
  editing: Editing | null;
  onCancelEdit: () => void;
}

/** The composer of an existing chat. */
export function ChatComposer(props: ChatComposerProps) {
  const { session, chat, editing } = props;
  const status = useShownStatus(session);
  const busy = isActive(status);
  const hasQueue = useShownQueue(session).length > 0;
  const steers = useDisplay().busySend === "steer";
  const banner = useEditBanner(session, editing);
  const threshold = useThreshold(chat?.last_model_config_id ?? null);
  const promoteFirst = () => {
    const { data, pending } = session.store.getState();
    const first = shownQueue(data, pending).find((row) => row.id !== null);
    if (first?.id) session.promote(first.id).catch(showError);
  };
  return (
    <>
      {chat?.workspace_id === null && <NoWorkspaces />}
      <Composer
        ref={props.handle}
        key={session.id}
        userId={props.userId}
        chatId={session.id}
        busy={busy}
        hasQueue={hasQueue}
        stopping={status === "interrupting"}
        placeholder={!busy ? "Message the agent" : steers ? "Steer the agent" : "Queue a message for the agent"}
        choice={props.choice}
        onChoose={props.onChoose}
        planMode={chat?.plan_mode ?? false}
        onPlanMode={props.onPlanMode}
        permissionMode={permissionModeOf(chat)}
        onPermissionMode={chat?.parent_chat_id ? null : props.onPermissionMode}
        workspaceId={chat?.workspace_id ?? null}
        onWorkspace={props.onWorkspace}
        serverIds={chat?.mcp_server_ids ?? []}
        onServers={props.onServers}
        onSubmit={props.onSubmit}
        onStop={() => session.stop().catch(showError)}
        onPromoteFirst={promoteFirst}
        onCommand={props.onCommand}
        editing={banner ? { banner, onCancel: props.onCancelEdit } : null}
        extra={chat && <ContextRing chat={chat} session={session} threshold={threshold} canAct={!busy} />}
        autoFocus
      />
    </>
  );
}

function useEditBanner(session: ChatSession, editing: Editing | null): string | null {
  const later = useStore(session.store, (state) =>
    editing?.kind === "message" ? state.data.order.filter((id) => id > editing.message.id).length : 0,
  );
  const queued = useStore(session.store, (state) => (editing?.kind === "message" ? state.data.queue.length : 0));
  const running = useStore(session.store, (state) => isActive(state.data.status));
  if (!editing) return null;
  if (editing.kind === "queued") return `Editing queued message ${editing.place}`;
  return editBanner({ later, queued, isRunning: running });
}

const referencesOf = (parts: readonly Part[]) => parts.filter((part) => part.type === "file-reference");

/** Return the content of a message in the form that the composer edits. */
export function editable(parts: readonly Part[]) {
  return [plainText(parts), draftFiles(parts), referencesOf(parts)] as const;
}

function draftFiles(parts: readonly Part[]) {
  return filesOf(parts).flatMap((part) =>
    part.type === "file" && part.file_id
      ? [{ id: part.file_id, name: part.name ?? "file", mimeType: part.media_type ?? "", size: 0 }]
      : [],
  );
}
