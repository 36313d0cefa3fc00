/** What is said about a subagent: what it was asked, what it reported. */
import { Link } from "react-router";
import { fields, text } from "@/chat/tools";
import { Markdown } from "@/features/timeline/markdown";
import { Box, Facts, Note } from "@/features/tools/parts";
import type { BodyProps } from "@/features/tools/tool";

export function AgentBody({ call }: BodyProps) {
  const args = fields(call.args);
  const result = fields(call.result);
  const chat = text(result.chat_id) || text(args.chat_id);
  const said = text(args.prompt) || text(args.message);
  return (
    <div className="space-y-2">
      {said && (
        <Box label="Prompt" copy={said}>
          <p className="whitespace-pre-wrap">{said}</p>
        </Box>
      )}
      {text(result.report) && (
        <Box label="Report" copy={text(result.report)}>
          <Markdown text={text(result.report)} />
        </Box>
      )}
      {result.timed_out === true && <Note>Still working; waiting for it was given up, not the work.</Note>}
      {text(result.last_error) && <Note warn>{text(result.last_error)}</Note>}
      <Facts
        facts={[
          ["Kind", text(result.type) || text(args.type)],
          ["Status", text(result.status)],
          [
            "Chat",
            chat && (
              <Link key="l" className="text-accent underline" to={`/c/${chat}`}>
                Go to chat
              </Link>
            ),
          ],
        ]}
      />
    </div>
  );
}
