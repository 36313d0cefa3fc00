import { Hourglass } from "lucide-react";
import { toldState } from "@/chat/agents";
import { fields, text, waitedFor } from "@/chat/tools";
import { Markdown } from "@/features/timeline/markdown";
import { OpenAgent, StateText } from "@/features/tools/agent_line";
import { Box, Note } from "@/features/tools/parts";
import type { BodyProps, Tool } from "@/features/tools/tool";

/** One line for each subagent, with its report. */
function Body({ call, state }: BodyProps) {
  const agents = call.isError ? [] : waitedFor(fields(call.result));
  if (agents.length === 0) {
    if (state === "failed") return null;
    const isOver = state === "stopped" || state === "lost";
    return <Note>{isOver ? "The wait ended before a report came." : "Waiting for reports"}</Note>;
  }
  return (
    <ul className="space-y-3">
      {agents.map((agent) => {
        const report = text(agent.report);
        return (
          <li key={text(agent.chat_id)} className="space-y-1">
            <div className="flex items-center gap-2">
              <span className="min-w-0 flex-1 truncate font-medium">{text(agent.title)}</span>
              <StateText state={toldState(agent)} />
              <OpenAgent chatId={text(agent.chat_id)} title={text(agent.title)} />
            </div>
            {agent.timed_out === true && <Note>The wait is over. The agent goes on working.</Note>}
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

export const waitAgent: Tool = { icon: Hourglass, Body };
