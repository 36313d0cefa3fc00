import { SquareTerminal } from "lucide-react";
import { fields, number, text } from "@/chat/tool_texts";
import { Facts, Note, Output, outputView } from "./card_bodies";
import type { BodyProps, Tool } from "./tool_display";

function Body({ call }: BodyProps) {
  const result = fields(call.result);
  const output = call.hasResult ? text(result.output) : call.output;
  // A process that still runs is watched, so its newest lines matter.
  const isEndWanted = call.isError || result.running === true || (number(result.exit_code) ?? 0) !== 0;
  return (
    <div className="space-y-2">
      {output ? (
        <Output text={output} view={outputView(!call.hasResult, isEndWanted)} />
      ) : (
        call.hasResult && <Note>No output yet.</Note>
      )}
      <Facts
        facts={[
          ["Process", text(fields(call.args).process_id)],
          [
            "State",
            result.running === true
              ? "still running"
              : call.hasResult
                ? `exited with ${String(result.exit_code ?? "?")}`
                : null,
          ],
        ]}
      />
    </div>
  );
}

export const processOutput: Tool = { icon: SquareTerminal, Body };
