import { Suspense, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { useStore } from "zustand";
import { patchChat, proposeTitle } from "@/api/chats";
import { leftQueue } from "@/api/errors";
import { newId } from "@/api/id";
import type { ChatView, Effort, PatchBody } from "@/api/types.gen";
import { isActive, type Part } from "@/chat/types";
import type { ComposerHandle } from "@/features/composer/composer";
import type { ModelChoice } from "@/features/composer/model_picker";
import type { Submission } from "@/features/composer/submission";
import { ChatComposer, type Editing, editable, showError } from "@/features/conversation/chat_composer";
import { useOpenFile } from "@/features/conversation/open_file";
import { useTurnAnnouncements } from "@/features/conversation/turn_announcements";
import { useGoToPlace } from "@/features/debug/debug_address";
import { Timeline } from "@/features/timeline/timeline";
import type { ChatSession } from "@/state/chat_session";
import { keys, noteChat, queryClient, useChat, useDisplay, useKnownModels, useMe } from "@/state/queries";
import { useHasDebug, useRecordedTurns } from "@/state/recorded_turns";
import { useSession } from "@/state/session_hooks";
import { useFollowAgents, useHasAgents } from "@/state/subagents";
import { cx } from "@/ui/cx";
import { lazyPart } from "@/ui/lazy_part";
import { toast } from "@/ui/toast";
import { type Conversation, ConversationContext } from "./chat_context";
import { ConnectionBanner } from "./connection_banner";

// Loaded after the page, so that the print command of the browser finds it.
const PrintSheet = lazyPart(async () => (await import("./print_view")).PrintSheet);
// Loaded with the first running turn, because only messages to a busy chat are queued.
const Queue = lazyPart(async () => (await import("@/features/composer/queued_messages")).Queue);
// Loaded with the first subagent.
const AgentQuestions = lazyPart(async () => (await import("@/features/conversation/agent_questions")).AgentQuestions);
// Loaded with the first chat that has chosen servers, or whose workspace may name some.
const ConnectNotices = lazyPart(async () => (await import("@/features/mcp/connect_notices")).ConnectNotices);
const ReadOnly = lazyPart(async () => (await import("@/features/conversation/read_only")).ReadOnly);
const StreamEnded = lazyPart(async () => (await import("@/features/conversation/read_only")).StreamEnded);
// Loaded with the first chat that has a workspace, because only workspaces have servers.
const ServerQuestions = lazyPart(async () => (await import("@/features/panel/mcp_servers")).ServerQuestions);

interface Props {
  chatId: string;
  /** The message to scroll to. */
  target?: number | null;
}

/** A chat: the timeline and the message box. The header belongs to the shell. */
export function ConversationPage({ chatId, target = null }: Props) {
  const session = useSession(chatId);
  return <ConversationView key={chatId} session={session} target={target} />;
}

function ConversationView({ session, target }: { session: ChatSession; target: number | null }) {
  const chatId = session.id;
  const { data: chat } = useChat(chatId);
  const { data: me } = useMe();
  const models = useKnownModels();
  const { fullWidth } = useDisplay();
  const composer = useRef<ComposerHandle>(null);
  const [editing, setEditing] = useState<Editing | null>(null);
  const archivedNow = useStore(session.store, (state) => state.data.archived);
  const mayQueue = useStore(session.store, ({ data }) => data.queue.length > 0 || isActive(data.status));
  const ending = useStore(session.store, (state) => state.conn.ending);
  const isOwner = chat ? chat.my_role === "owner" : true;
  const isArchived = chat?.archived ?? archivedNow;
  const { choice, setChoice } = useChoice(chat);
  const patch = usePatch(chat);
  const planMode = chat?.plan_mode ?? false;
  const openFile = useOpenFile(chat);
  useTurnAnnouncements(session);
  useEffect(() => {
    if (me) session.restore(me.id);
  }, [session, me]);
  useFollowAgents(chatId, chat?.root_chat_id);
  const hasAgents = useHasAgents(chat);
  useRecordedTurns(session);
  const hasDebug = useHasDebug(chat);
  const goToDebug = useGoToPlace();

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
        showError(error);
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
          showError(error);
          setEditing(editing);
          return false;
        }
        // The message was sent meanwhile. The changed text is put into the box, before the kept draft.
        toast("This message was already sent. Your text is in the box.", { kind: "error" });
        composer.current?.endEdit();
        return false;
      }
    }
    const body = {
      content,
      ...choiceBody,
      ...(submission.busy === "queue" ? {} : { busy_behavior: submission.busy }),
    };
    const outcome = await session.send(body, parts, newId());
    if (outcome === "queue_full") {
      toast("20 messages are waiting. Send or delete one of them first.", { kind: "error" });
      return false;
    }
    return true;
  }

  const onCommand = (name: string) => {
    if (name === "compact") session.compact().catch(showError);
    else if (name === "stop") session.stop().catch(showError);
    else if (name === "retry") session.retry().catch(showError);
    else if (name === "debug") {
      if (hasDebug) goToDebug({ run: null, step: null });
      else toast("Model calls of this chat are not recorded.");
    } else if (name === "export") {
      import("./chat_export")
        .then(({ exportChat }) => exportChat(session, chat?.title ?? "chat", "markdown"))
        .catch(showError);
    } else if (name === "title") {
      proposeTitle(chatId)
        .then(({ title }) => patch({ title }))
        .catch(showError);
    }
  };

  const choose = (next: ModelChoice) => {
    setChoice(next);
    // After an error the turn continues with the newly chosen model.
    const { status } = session.store.getState().data;
    if (status === "error" && next.modelConfigId && next.modelConfigId !== chat?.last_model_config_id) {
      patch({ model_config_id: next.modelConfigId, reasoning_effort: next.effort })
        .then(() => session.retry())
        .catch(showError);
    }
  };

  if (ending === "forbidden" || ending === "gone")
    return (
      <Suspense>
        <StreamEnded ending={ending} />
      </Suspense>
    );
  const width = fullWidth ? "max-w-none" : "max-w-[48rem]";
  return (
    <ConversationContext value={conversation}>
      {/* biome-ignore lint/a11y/noStaticElementInteractions: files can be dropped anywhere; keyboard users have the file picker */}
      <div
        className="flex min-h-0 flex-1 flex-col"
        onDragOver={(event) => event.dataTransfer.types.includes("Files") && event.preventDefault()}
        onDrop={(event) => {
          if (event.defaultPrevented || event.dataTransfer.files.length === 0) return;
          event.preventDefault();
          composer.current?.addFiles([...event.dataTransfer.files]);
        }}
      >
        <Suspense>
          <PrintSheet session={session} chat={chat} />
        </Suspense>
        <Timeline session={session} target={target} dimFrom={editing?.kind === "message" ? editing.message.id : null} />
        <div className={cx("mx-auto w-full px-4 pt-1 pb-[max(1rem,env(safe-area-inset-bottom))]", width)}>
          <ConnectionBanner session={session} />
          {isOwner && !isArchived ? (
            <>
              {chat && hasAgents && (
                <Suspense>
                  <AgentQuestions chat={chat} />
                </Suspense>
              )}
              {chat?.context && (
                <Suspense>
                  <ServerQuestions chat={chat} />
                </Suspense>
              )}
              {chat && (chat.mcp_server_ids.length > 0 || chat.context !== null) && (
                <Suspense>
                  <ConnectNotices chat={chat} session={session} />
                </Suspense>
              )}
              {mayQueue && (
                <Suspense>
                  <Queue
                    session={session}
                    modelConfigId={chat?.last_model_config_id ?? null}
                    editing={editing?.kind === "queued" ? editing.row.id : null}
                    onTakeBack={
                      editing ? null : (taken) => composer.current?.takeBack(taken.map((row) => editable(row.parts)))
                    }
                    onEdit={(row, place) => {
                      setEditing({ kind: "queued", row, place });
                      composer.current?.beginEdit(...editable(row.parts));
                    }}
                  />
                </Suspense>
              )}
              {me && (
                <ChatComposer
                  handle={composer}
                  session={session}
                  chat={chat}
                  userId={me.id}
                  choice={choice}
                  onChoose={choose}
                  onWorkspace={(id) => patch({ workspace_id: id }).catch(showError)}
                  onServers={(ids) => patch({ mcp_server_ids: ids }).catch(showError)}
                  onPlanMode={(on) => patch({ plan_mode: on }).catch(showError)}
                  onPermissionMode={(mode) => patch({ permission_mode: mode }).catch(showError)}
                  onSubmit={submit}
                  onCommand={onCommand}
                  editing={editing}
                  onCancelEdit={endEditing}
                />
              )}
            </>
          ) : (
            <Suspense>
              <ReadOnly
                chat={chat}
                isArchived={isArchived}
                onUnarchive={() => patch({ archived: false }).catch(showError)}
              />
            </Suspense>
          )}
        </div>
      </div>
    </ConversationContext>
  );
}

/** Return the model for the next message: that of the chat until the user chooses another. */
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

/** Return a function that changes the chat. The change is shown at once and reverted if the request fails. */
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
