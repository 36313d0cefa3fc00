import { Bot, ChevronRight } from "lucide-react";
import { isAtWork } from "@/chat/subagent_texts";
import { fields, labelOf, text } from "@/chat/tool_texts";
import { useConversation } from "@/features/conversation/chat_context";
import { AgentTimeline } from "@/features/timeline/agent_timeline";
import { OpenAgent } from "@/features/tools/agent_line";
import { AgentSummary } from "@/features/tools/agent_summary";
import { useOpen } from "@/state/opened_cards";
import { useAgents } from "@/state/subagents";
import { cx } from "@/ui/cx";
import { Mark } from "./call_mark";
import { Box, Note } from "./card_bodies";
import type { BodyProps } from "./tool_display";

/** The live card of a subagent: its state, figures and last activity. It opens to its task and its timeline. */
export function SpawnCard({ call, state }: BodyProps) {
  const { chatId, isOwner, isArchived, modelName } = useConversation();
  const args = fields(call.args);
  const result = fields(call.result);
  const child = text(result.chat_id);
  const { data } = useAgents(chatId, call.hasResult && !call.isError);
  const agent = data?.agents.find((one) => (child ? one.chat_id === child : one.tool_call_id === call.id));
  const [open, setOpen] = useOpen(call.id, false);
  const label = agent ? `Agent: ${agent.title}` : labelOf(call, state);
  const prompt = text(args.prompt);
  return (
    <div className="rounded-lg border border-line bg-bg1" data-testid="tool-spawn_agent" data-state={state}>
      <button
        type="button"
        aria-expanded={open}
        onClick={() => setOpen(!open)}
        className="flex min-h-9 w-full items-center gap-2 rounded-lg px-3 py-1.5 text-left hover:bg-bg2"
      >
        <Bot aria-hidden className="size-4 shrink-0 text-muted" />
        <span className="min-w-0 flex-1 truncate">{label}</span>
        <span className="shrink-0 text-small text-muted">{agent?.kind ?? (text(result.type) || text(args.type))}</span>
        <Mark call={call} state={state} />
        <ChevronRight
          aria-hidden
          className={cx("size-4 shrink-0 text-muted transition-transform", open && "rotate-90")}
        />
      </button>
      {agent ? (
        <div className="px-3 pt-0.5 pb-2">
          <AgentSummary
            agent={agent}
            model={modelName(agent.model_config_id)}
            chatId={chatId}
            mayAct={isOwner && !isArchived}
          />
        </div>
      ) : (
        child && (
          <div className="flex justify-end px-3 pb-2">
            <OpenAgent chatId={child} title={text(result.title)} />
          </div>
        )
      )}
      {open && (
        <div className="space-y-3 border-t border-line p-3">
          {state === "failed" && (
            <p className="text-small break-words whitespace-pre-wrap text-danger">
              {text(result.error) || text(call.result)}
            </p>
          )}
          {prompt && (
            <div>
              <p className="mb-1 text-small font-medium text-muted">Task</p>
              <Box label="Task" copy={prompt}>
                <p className="break-words whitespace-pre-wrap">{prompt}</p>
              </Box>
            </div>
          )}
          {child && !call.isError && (
            <div>
              <p className="mb-1 text-small font-medium text-muted">Timeline</p>
              <AgentTimeline
                chatId={child}
                title={agent?.title ?? text(result.title)}
                isAtWork={!agent || isAtWork(agent)}
              />
            </div>
          )}
          {agent?.deadline_at && isAtWork(agent) && (
            <Note>Time limit: {new Date(agent.deadline_at).toLocaleTimeString([], { timeStyle: "short" })}</Note>
          )}
        </div>
      )}
    </div>
  );
}
