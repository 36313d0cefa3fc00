import { Wrench } from "lucide-react";
import { fields, text } from "@/chat/tools";
import { Json, Output } from "@/features/tools/parts";
import type { BodyProps, Tool } from "@/features/tools/tool";

/** The body for tools of MCP servers and clients, and unknown tools: input and output as JSON. */
function Body({ call }: BodyProps) {
  const media = fields(call.result);
  const picture = text(media.media_type).startsWith("image/") && text(media.data);
  return (
    <div className="space-y-2">
      {call.args !== undefined && <Json value={call.args} label="Input" />}
      {!call.hasResult && call.output && <Output text={call.output} />}
      {picture ? (
        <img
          alt="Result of the tool"
          className="max-h-64 rounded-md"
          src={`data:${text(media.media_type)};base64,${picture}`}
        />
      ) : (
        call.hasResult && call.result !== undefined && <Json value={call.result} label="Output" />
      )}
    </div>
  );
}

export const unknownTool: Tool = { icon: Wrench, Body };
