/** The body of calls about one subagent: the message to it, or its report. */
import { Link } from "react-router";
import { toldState } from "@/chat/agents";
import { fields, text } from "@/chat/tools";
import { Markdown } from "@/features/timeline/markdown";
import { StateText } from "@/features/tools/agent_line";
import { Box, Facts, Note } from "@/features/tools/parts";
import type { BodyProps } from "@/features/tools/tool";

export function AgentBody({ call }: BodyProps) {
  const args = fields(call.args);
  const result = fields(call.result);
  const chat = text(result.chat_id) || text(args.chat_id);
  const said = text(args.message);
  return (
    <div className="space-y-2">
      {said && (
        <Box label="Message" copy={said}>
          <p className="whitespace-pre-wrap">{said}</p>
        </Box>
      )}
      {text(result.report) && (
        <Box label="Report" copy={text(result.report)}>
          <Markdown text={text(result.report)} />
        </Box>
      )}
      {text(result.last_error) && <Note warn>{text(result.last_error)}</Note>}
      <Facts
        facts={[
          ["Kind", text(result.type) || text(args.type)],
          ["Status", text(result.status) && <StateText key="s" state={toldState(result)} />],
          [
            "Chat",
            chat && (
              <Link key="l" className="text-accent underline" to={`/c/${chat}`}>
                Open
              </Link>
            ),
          ],
        ]}
      />
    </div>
  );
}
