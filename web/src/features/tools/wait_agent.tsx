import { Hourglass } from "lucide-react";
import { agentState, toldState } from "@/chat/subagent_texts";
import { awaitedIds, fields, text, waitedFor } from "@/chat/tool_texts";
import { useConversation } from "@/features/conversation/chat_context";
import { Markdown } from "@/features/timeline/markdown";
import { AgentLabel } from "@/features/tools/agent_card";
import { AgentLine } from "@/features/tools/agent_line";
import { useAgents } from "@/state/subagents";
import { Box, Note } from "./card_bodies";
import type { BodyProps, Tool } from "./tool_display";

/** The subagents that a running call waits for, as they are now. */
function Awaited({ ids }: { ids: readonly string[] }) {
  const { chatId } = useConversation();
  const { data } = useAgents(chatId);
  const agents = ids.flatMap((id) => data?.agents.find((one) => one.chat_id === id) ?? []);
  if (agents.length === 0) return <Note>Waiting for reports</Note>;
  return (
    <ul className="space-y-3">
      {agents.map((one) => (
        <li key={one.chat_id}>
          <AgentLine chatId={one.chat_id} title={one.title} state={agentState(one)} />
        </li>
      ))}
    </ul>
  );
}

/** One line for each subagent, with its report. */
function Body({ call, state }: BodyProps) {
  const agents = call.isError ? [] : waitedFor(fields(call.result));
  if (agents.length === 0) {
    if (state === "failed") return null;
    if (state === "stopped" || state === "lost") return <Note>The wait ended before a report came.</Note>;
    return <Awaited ids={awaitedIds(fields(call.args))} />;
  }
  return (
    <ul className="space-y-3">
      {agents.map((agent) => {
        const report = text(agent.report);
        return (
          <li key={text(agent.chat_id)} className="space-y-1">
            <AgentLine chatId={text(agent.chat_id)} title={text(agent.title)} state={toldState(agent)} />
            {agent.timed_out === true && <Note>The wait is over. The agent continues to work.</Note>}
            {text(agent.last_error) && <Note warn>{text(agent.last_error)}</Note>}
            {report && (
              <Box label={`Report of ${text(agent.title)}`} copy={report}>
                <Markdown text={report} />
              </Box>
            )}
          </li>
        );
      })}
    </ul>
  );
}

export const waitAgent: Tool = { icon: Hourglass, Label: AgentLabel, Body };
