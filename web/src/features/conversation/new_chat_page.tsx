import { useRef, useState } from "react";
import { useNavigate } from "react-router";
import { createChat, patchChat } from "@/api/chats";
import { sentence, Unreachable } from "@/api/errors";
import { newId } from "@/api/id";
import type { Effort } from "@/api/types.gen";
import type { PermissionMode } from "@/chat/types";
import { Composer, type ComposerHandle } from "@/features/composer/composer";
import { effortKey, type ModelChoice, read } from "@/features/composer/model_picker";
import { NoWorkspaces } from "@/features/composer/no_workspaces";
import type { Submission } from "@/features/composer/submission";
import { noteChat, useKnownModels, useMe, useModels } from "@/state/queries";
import { Button } from "@/ui/button";
import { toast } from "@/ui/toast";

const PROMPTS = [
  "Explain what you can do here",
  "Plan a small project with me",
  "Write a Python script that renames photos by date",
  // The offline guide understands it too.
  "Delegate to two agents: list the files in /etc; run uname -a",
];

/** The page for a new chat. The first message creates it. */
export function NewChatPage() {
  const { data: me } = useMe();
  const navigate = useNavigate();
  const models = useKnownModels();
  const { isSuccess } = useModels();
  const composer = useRef<ComposerHandle>(null);
  const [chosen, setChosen] = useState<ModelChoice | null>(null);
  const [planMode, setPlanMode] = useState(false);
  const [permissionMode, setPermissionMode] = useState<PermissionMode>("auto");
  const [serverIds, setServerIds] = useState<string[] | null>(null);
  const [workspaceId, setWorkspaceId] = useState<string | null>(null);
  // The same idempotency key for each attempt: a repeat after a lost response creates no second chat.
  const key = useRef(newId());
  const usable = models.filter((one) => one.provider.available);
  const remembered =
    usable.find((one) => one.id === read("rookery.model")) ?? usable.find((one) => one.is_default) ?? usable[0];
  const choice: ModelChoice = chosen ?? {
    modelConfigId: remembered?.id ?? null,
    effort: remembered ? (read(effortKey(remembered.id)) as Effort | null) : null,
  };

  async function submit(submission: Submission): Promise<boolean> {
    try {
      const chat = await createChat(
        {
          content: submission.content,
          client_type: "ui",
          ...(submission.choice.modelConfigId ? { model_config_id: submission.choice.modelConfigId } : {}),
          ...(submission.choice.effort ? { reasoning_effort: submission.choice.effort } : {}),
          ...(workspaceId ? { workspace_id: workspaceId } : {}),
          ...(serverIds ? { mcp_server_ids: serverIds } : {}),
          ...(submission.planMode ? { plan_mode: true } : {}),
          ...(permissionMode === "auto" ? {} : { permission_mode: permissionMode }),
        },
        key.current,
      );
      key.current = newId();
      noteChat(chat);
      // A chat that is started in a folder belongs to it.
      const folder = new URLSearchParams(location.search).get("folder");
      if (folder) await patchChat(chat.id, { folder_id: folder }).catch(() => {});
      void navigate(`/c/${chat.id}${folder ? location.search : ""}`);
      return true;
    } catch (error) {
      if (!(error instanceof Unreachable)) key.current = newId();
      toast(sentence(error), { kind: "error" });
      return false;
    }
  }

  if (!me) return null;
  return (
    <div className="flex min-h-0 flex-1 flex-col overflow-y-auto px-4">
      <div className="m-auto w-full max-w-[44rem] py-8">
        <h1 className="mb-6 text-center text-[24px] font-semibold">
          What should we work on, {me.name || me.username}?
        </h1>
        {isSuccess && usable.length === 0 && (
          <p role="status" className="mb-3 rounded-lg border border-warn px-4 py-2 text-center">
            {me.role === "admin"
              ? "No model is set up yet. Add one in the settings."
              : "No model is set up yet. Ask an administrator."}
          </p>
        )}
        <NoWorkspaces />
        <Composer
          ref={composer}
          userId={me.id}
          chatId={null}
          busy={false}
          stopping={false}
          placeholder="Message the agent"
          choice={choice}
          onChoose={setChosen}
          planMode={planMode}
          onPlanMode={setPlanMode}
          permissionMode={permissionMode}
          onPermissionMode={setPermissionMode}
          workspaceId={workspaceId}
          onWorkspace={setWorkspaceId}
          serverIds={serverIds}
          onServers={setServerIds}
          onSubmit={submit}
          onStop={() => {}}
          onPromoteFirst={() => {}}
          onCommand={() => {}}
          editing={null}
          autoFocus
        />
        <div className="mt-4 flex flex-wrap justify-center gap-2">
          {PROMPTS.map((prompt) => (
            <Button
              key={prompt}
              size="small"
              className="rounded-full! text-muted!"
              onClick={() => composer.current?.insert(prompt)}
            >
              {prompt}
            </Button>
          ))}
        </div>
      </div>
    </div>
  );
}
