/** The header and the body of calls about one subagent: the message to it, or its report. */
import { toldState } from "@/chat/subagent_texts";
import { fields, labelOf, text } from "@/chat/tool_texts";
import { useConversation } from "@/features/conversation/chat_context";
import { Markdown } from "@/features/timeline/markdown";
import { AgentLine } from "@/features/tools/agent_line";
import { useAgents } from "@/state/subagents";
import { Box, Note } from "./card_bodies";
import type { BodyProps } from "./tool_display";

/** The header with the title of the subagent, which is known before the result. */
export function AgentLabel({ call, state }: BodyProps) {
  const { chatId } = useConversation();
  const { data } = useAgents(chatId);
  return labelOf(call, state, (id) => data?.agents.find((one) => one.chat_id === id)?.title ?? "");
}

export function AgentBody({ call }: BodyProps) {
  const { chatId } = useConversation();
  const { data } = useAgents(chatId);
  const args = fields(call.args);
  const result = fields(call.result);
  const chat = text(result.chat_id) || text(args.chat_id);
  const agent = data?.agents.find((one) => one.chat_id === chat);
  const said = text(args.message);
  const title = text(result.title) || agent?.title;
  return (
    <div className="space-y-2">
      {title && (
        <AgentLine chatId={chat} title={title} {...(text(result.status) ? { state: toldState(result) } : {})} />
      )}
      {said && (
        <Box label="Message" copy={said}>
          <p className="break-words whitespace-pre-wrap">{said}</p>
        </Box>
      )}
      {text(result.report) && (
        <Box label="Report" copy={text(result.report)}>
          <Markdown text={text(result.report)} />
        </Box>
      )}
      {text(result.last_error) && <Note warn>{text(result.last_error)}</Note>}
    </div>
  );
}
