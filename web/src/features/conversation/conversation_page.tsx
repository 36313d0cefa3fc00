import { useCallback, useMemo, useRef, useState } from "react";
import { useStore } from "zustand";
import { patchChat, proposeTitle } from "@/api/chats";
import { leftQueue, sentence } from "@/api/errors";
import { newId } from "@/api/id";
import type { ChatView, Effort, PatchBody } from "@/api/types.gen";
import { filesOf, plainText, type QueueRow, shownQueue } from "@/chat/pending";
import { isActive, type Message, type Part } from "@/chat/types";
import { Composer, type ComposerHandle, type Submission } from "@/features/composer/composer";
import { ContextRing } from "@/features/composer/context_ring";
import type { ModelChoice } from "@/features/composer/model_picker";
import { Queue } from "@/features/composer/queue";
import { type Conversation, ConversationContext } from "@/features/conversation/context";
import { editBanner } from "@/features/conversation/edit_banner";
import { exportChat } from "@/features/conversation/export";
import { ConnectionBanner, ReadOnly, StreamEnded } from "@/features/conversation/notices";
import { useOpenFile } from "@/features/conversation/open_file";
import { PrintSheet } from "@/features/conversation/print";
import { useTurnNews } from "@/features/conversation/turn_news";
import { ServerQuestions } from "@/features/panel/mcp_servers";
import { Timeline } from "@/features/timeline/timeline";
import type { ChatSession } from "@/state/chat_session";
import { useSession, useShownStatus } from "@/state/hooks";
import { keys, noteChat, queryClient, useChat, useDisplay, useKnownModels, useMe, useThreshold } from "@/state/queries";
import { cx } from "@/ui/cx";
import { toast } from "@/ui/toast";

interface Props {
  chatId: string;
  /** A message to open at. */
  target?: number | null;
}

type Editing = { kind: "message"; message: Message } | { kind: "queued"; row: QueueRow; place: number };

const fail = (error: unknown) => void toast(sentence(error), { kind: "error" });

/** A conversation: its transcript and the box to write in. The header is the shell's. */
export function ConversationPage({ chatId, target = null }: Props) {
  const session = useSession(chatId);
  return <ConversationOf key={chatId} session={session} target={target} />;
}

function ConversationOf({ session, target }: { session: ChatSession; target: number | null }) {
  const chatId = session.id;
  const { data: chat } = useChat(chatId);
  const { data: me } = useMe();
  const models = useKnownModels();
  const { fullWidth } = useDisplay();
  const composer = useRef<ComposerHandle>(null);
  const [editing, setEditing] = useState<Editing | null>(null);
  const archivedNow = useStore(session.store, (state) => state.data.archived);
  const ending = useStore(session.store, (state) => state.conn.ending);
  const isOwner = chat ? chat.my_role === "owner" : true;
  const isArchived = chat?.archived ?? archivedNow;
  const { choice, setChoice } = useChoice(chat);
  const patch = usePatch(chat);
  const planMode = chat?.plan_mode ?? false;
  const openFile = useOpenFile(chat);
  useTurnNews(session);

  const modelName = useCallback(
    (id: string | null) => models.find((one) => one.id === id)?.display_name ?? null,
    [models],
  );

  const conversation = useMemo((): Conversation => {
    return {
      chatId,
      session,
      isOwner,
      isArchived,
      planMode,
      sendText: async (text, options) => {
        const parts: Part[] = [{ type: "text", text }];
        const body = {
          content: [{ type: "text" as const, text }],
          ...(options?.planMode === undefined ? {} : { plan_mode: options.planMode }),
        };
        await session.send(body, parts, newId());
      },
      insertText: (text) => composer.current?.insert(text),
      editMessage: (message) => {
        setEditing({ kind: "message", message });
        composer.current?.beginEdit(...editable(message.content));
      },
      openModelPicker: () => composer.current?.openModels(),
      openFile,
      modelName,
    };
  }, [chatId, session, isOwner, isArchived, planMode, openFile, modelName]);

  const endEditing = () => {
    setEditing(null);
    composer.current?.endEdit();
  };

  async function submit(submission: Submission): Promise<boolean> {
    const { content, parts } = submission;
    const choiceBody = modelBody(submission.choice, chat);
    if (editing?.kind === "message") {
      const { message } = editing;
      setEditing(null);
      try {
        await session.edit(message.id, { content, ...choiceBody }, parts);
        composer.current?.endEdit();
        return true;
      } catch (error) {
        fail(error);
        setEditing(editing);
        return false;
      }
    }
    if (editing?.kind === "queued" && editing.row.id !== null) {
      const { id } = editing.row;
      setEditing(null);
      try {
        await session.editQueued(id, { content }, parts);
        composer.current?.endEdit();
        return true;
      } catch (error) {
        if (!leftQueue(error)) {
          fail(error);
          setEditing(editing);
          return false;
        }
        // It went out meanwhile: what was changed becomes the draft, before the one that was put aside.
        toast("This message was already sent. Your text is in the box.", { kind: "error" });
        composer.current?.endEdit();
        return false;
      }
    }
    const body = {
      content,
      ...choiceBody,
      ...(submission.now ? { busy_behavior: "interrupt" as const } : {}),
    };
    const outcome = await session.send(body, parts, newId());
    if (outcome === "queue_full") {
      toast("20 messages are waiting. Send or delete one of them first.", { kind: "error" });
      return false;
    }
    return true;
  }

  const onCommand = (name: string) => {
    if (name === "compact") session.compact().catch(fail);
    else if (name === "stop") session.stop().catch(fail);
    else if (name === "retry") session.retry().catch(fail);
    else if (name === "export") exportChat(session, chat?.title ?? "chat", "markdown").catch(fail);
    else if (name === "title") {
      proposeTitle(chatId)
        .then(({ title }) => patch({ title }))
        .catch(fail);
    }
  };

  const choose = (next: ModelChoice) => {
    setChoice(next);
    // A failed turn goes on with the other model.
    const { status } = session.store.getState().data;
    if (status === "error" && next.modelConfigId && next.modelConfigId !== chat?.last_model_config_id) {
      patch({ model_config_id: next.modelConfigId, reasoning_effort: next.effort })
        .then(() => session.retry())
        .catch(fail);
    }
  };

  if (ending === "forbidden" || ending === "gone") return <StreamEnded ending={ending} />;
  const width = fullWidth ? "max-w-none" : "max-w-[48rem]";
  return (
    <ConversationContext value={conversation}>
      {/* biome-ignore lint/a11y/noStaticElementInteractions: files may be dropped anywhere; the picker is the way by keys */}
      <div
        className="flex min-h-0 flex-1 flex-col"
        onDragOver={(event) => event.dataTransfer.types.includes("Files") && event.preventDefault()}
        onDrop={(event) => {
          if (event.defaultPrevented || event.dataTransfer.files.length === 0) return;
          event.preventDefault();
          composer.current?.addFiles([...event.dataTransfer.files]);
        }}
      >
        <PrintSheet session={session} chat={chat} />
        <Timeline session={session} target={target} dimFrom={editing?.kind === "message" ? editing.message.id : null} />
        <div className={cx("mx-auto w-full px-4 pt-1 pb-[max(1rem,env(safe-area-inset-bottom))]", width)}>
          <ConnectionBanner session={session} />
          {isOwner && !isArchived ? (
            <>
              <ServerQuestions chat={chat} />
              <Queue
                session={session}
                modelConfigId={chat?.last_model_config_id ?? null}
                editing={editing?.kind === "queued" ? editing.row.id : null}
                onEdit={(row, place) => {
                  setEditing({ kind: "queued", row, place });
                  composer.current?.beginEdit(...editable(row.parts));
                }}
              />
              {me && (
                <ChatComposer
                  handle={composer}
                  session={session}
                  chat={chat}
                  userId={me.id}
                  choice={choice}
                  onChoose={choose}
                  onWorkspace={(id) => patch({ workspace_id: id }).catch(fail)}
                  onPlanMode={(on) => patch({ plan_mode: on }).catch(fail)}
                  onSubmit={submit}
                  onCommand={onCommand}
                  editing={editing}
                  onCancelEdit={endEditing}
                />
              )}
            </>
          ) : (
            <ReadOnly chat={chat} isArchived={isArchived} onUnarchive={() => patch({ archived: false }).catch(fail)} />
          )}
        </div>
      </div>
    </ConversationContext>
  );
}

interface ChatComposerProps {
  handle: React.RefObject<ComposerHandle | null>;
  session: ChatSession;
  chat: ChatView | undefined;
  userId: string;
  choice: ModelChoice;
  onChoose: (choice: ModelChoice) => void;
  onPlanMode: (on: boolean) => void;
  onWorkspace: (id: string | null) => void;
  onSubmit: (submission: Submission) => Promise<boolean>;
  onCommand: (name: string) => void;
  editing: Editing | null;
  onCancelEdit: () => void;
}

/** The composer of a chat that exists: it knows whether the agent is busy. */
function ChatComposer(props: ChatComposerProps) {
  const { session, chat, editing } = props;
  const status = useShownStatus(session);
  const busy = isActive(status);
  const banner = useEditBanner(session, editing);
  const threshold = useThreshold(chat?.last_model_config_id ?? null);
  const promoteFirst = () => {
    const { data, pending } = session.store.getState();
    const first = shownQueue(data, pending).find((row) => row.id !== null);
    if (first?.id) session.promote(first.id).catch(fail);
  };
  return (
    <Composer
      ref={props.handle}
      key={session.id}
      userId={props.userId}
      chatId={session.id}
      busy={busy}
      stopping={status === "interrupting"}
      placeholder={busy ? "Queue a message for the agent" : "Message the agent"}
      choice={props.choice}
      onChoose={props.onChoose}
      planMode={chat?.plan_mode ?? false}
      onPlanMode={props.onPlanMode}
      workspaceId={chat?.workspace_id ?? null}
      onWorkspace={props.onWorkspace}
      onSubmit={props.onSubmit}
      onStop={() => session.stop().catch(fail)}
      onPromoteFirst={promoteFirst}
      onCommand={props.onCommand}
      editing={banner ? { banner, onCancel: props.onCancelEdit } : null}
      extra={chat && <ContextRing chat={chat} session={session} threshold={threshold} canAct={!busy} />}
      unsent={() => unsent(session)}
      autoFocus
    />
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

/** Sends that nothing has confirmed: under way, or failed. */
function unsent(session: ChatSession) {
  const sends = session.store
    .getState()
    .pending.flatMap((op) => (op.kind === "send" && op.answered === undefined ? [op] : []));
  return {
    text: sends.map((one) => plainText(one.parts)).join("\n\n"),
    files: sends.flatMap((one) => draftFiles(one.parts)),
    references: sends.flatMap((one) => referencesOf(one.parts)),
  };
}

const referencesOf = (parts: readonly Part[]) => parts.filter((part) => part.type === "file-reference");

/** A message as the composer takes it over. */
function editable(parts: readonly Part[]) {
  return [plainText(parts), draftFiles(parts), referencesOf(parts)] as const;
}

function draftFiles(parts: readonly Part[]) {
  return filesOf(parts).flatMap((part) =>
    part.type === "file" && part.file_id
      ? [{ id: part.file_id, name: part.name ?? "file", mimeType: part.media_type ?? "", size: 0 }]
      : [],
  );
}

/** The model of the next message: the chat's, until another is chosen. */
function useChoice(chat: ChatView | undefined) {
  const [chosen, setChoice] = useState<ModelChoice | null>(null);
  const choice: ModelChoice = chosen ?? {
    modelConfigId: chat?.last_model_config_id ?? null,
    effort: (chat?.last_reasoning_effort as Effort | null | undefined) ?? null,
  };
  return { choice, setChoice };
}

function modelBody(choice: ModelChoice, chat: ChatView | undefined) {
  return {
    ...(choice.modelConfigId && choice.modelConfigId !== chat?.last_model_config_id
      ? { model_config_id: choice.modelConfigId }
      : {}),
    ...(choice.effort !== ((chat?.last_reasoning_effort as Effort | null | undefined) ?? null)
      ? { reasoning_effort: choice.effort }
      : {}),
  };
}

/** Change the chat: shown at once, put back when it fails. */
function usePatch(chat: ChatView | undefined) {
  return async (body: PatchBody): Promise<void> => {
    if (!chat) return;
    const before = queryClient.getQueryData<ChatView>(keys.chat(chat.id));
    queryClient.setQueryData<ChatView>(keys.chat(chat.id), (known) =>
      known ? ({ ...known, ...body } as ChatView) : known,
    );
    try {
      noteChat(await patchChat(chat.id, body));
    } catch (error) {
      queryClient.setQueryData(keys.chat(chat.id), before);
      throw error;
    }
  };
}
