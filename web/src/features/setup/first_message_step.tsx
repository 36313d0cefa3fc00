import { useMutation } from "@tanstack/react-query";
import { MessageSquare } from "lucide-react";
import { useNavigate } from "react-router";
import { createChat } from "@/api/chats";
import { sentence } from "@/api/errors";
import { newId } from "@/api/id";
import { useTemplates, whyNone } from "@/state/templates";
import { Commands } from "@/ui/backtick_code";
import { Button } from "@/ui/button";
import { Notice } from "@/ui/notice";

const PROMPTS = ["What can you do here?", "Plan a small project with me", "Explain how to review a pull request"];
const WORKING = ["What can you do here?", "List the files here", "Write a small Python program and run it"];

/** Suggestions for the first message. */
export function FirstMessageStep({ workspace }: { workspace: string | null }) {
  const navigate = useNavigate();
  const start = useMutation({
    mutationFn: (text: string) =>
      createChat(
        { content: [{ type: "text", text }], client_type: "ui", ...(workspace ? { workspace_id: workspace } : {}) },
        newId(),
      ),
    onSuccess: (chat) => navigate(`/c/${chat.id}`, { replace: true }),
  });
  const templates = useTemplates();
  const problem = whyNone(templates.data?.items);
  return (
    <div className="flex flex-col gap-2">
      {problem ? (
        <Notice kind="warn" className="mb-2">
          <p className="mb-1 font-medium">Chats are ready. Agents cannot run commands or edit files yet.</p>
          <Commands text={problem} />
        </Notice>
      ) : (
        !templates.isLoading && <p className="mb-2 text-muted">Everything is ready. Send the first message.</p>
      )}
      {start.error && <Notice kind="error">{sentence(start.error)}</Notice>}
      {(workspace ? WORKING : PROMPTS).map((prompt) => (
        <button
          key={prompt}
          type="button"
          disabled={start.isPending}
          onClick={() => start.mutate(prompt)}
          className="flex items-center gap-2.5 rounded-lg border border-line px-3 py-2.5 text-left hover:bg-bg2 disabled:opacity-60"
        >
          <MessageSquare className="size-4 shrink-0 text-muted" aria-hidden />
          {prompt}
        </button>
      ))}
      <Button kind="primary" className="mt-2 h-9" onClick={() => navigate("/", { replace: true })}>
        Start chatting
      </Button>
    </div>
  );
}
