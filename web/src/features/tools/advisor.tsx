import { Lightbulb } from "lucide-react";
import { fields, number, text } from "@/chat/tool_texts";
import { LiveMarkdown, Markdown } from "@/features/timeline/markdown";
import { Facts, Note } from "./card_bodies";
import type { BodyProps, Tool } from "./tool_display";

function Body({ call, state }: BodyProps) {
  const question = text(fields(call.args).question);
  const result = fields(call.result);
  const runs = state === "running" || state === "streaming";
  return (
    <div className="space-y-2">
      {question && <p className="italic">{question}</p>}
      {text(result.advice) && <Markdown text={text(result.advice)} />}
      {runs && (call.output ? <LiveMarkdown text={call.output} /> : <Note>Reviewing the conversation</Note>)}
      {state === "limit" && (
        <Note warn>
          {text(result.reason) || "The advisor limit for this turn is reached. The agent goes on without it."}
        </Note>
      )}
      <Facts
        facts={[
          ["Model", text(result.advisor_model)],
          ["Uses left", number(result.remaining_uses) === null ? null : String(number(result.remaining_uses))],
        ]}
      />
    </div>
  );
}

export const advisor: Tool = { icon: Lightbulb, Body, opensWhileRunning: true };
