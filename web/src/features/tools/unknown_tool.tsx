import { Wrench } from "lucide-react";
import { fields, text } from "@/chat/tool_texts";
import { Json, Output } from "./card_bodies";
import type { BodyProps, Tool } from "./tool_display";

/** The body for tools of MCP servers and clients, and unknown tools: input and output as JSON. */
function Body({ call }: BodyProps) {
  const media = fields(call.result);
  const type = text(media.mime_type);
  const picture = type.startsWith("image/") && text(media.data);
  return (
    <div className="space-y-2">
      {call.args !== undefined && <Json value={call.args} label="Input" />}
      {!call.hasResult && call.output && <Output text={call.output} view="live" />}
      {picture ? (
        <>
          {text(media.text) && <Output text={text(media.text)} />}
          <img alt="Result of the tool" className="max-h-64 rounded-md" src={`data:${type};base64,${picture}`} />
        </>
      ) : (
        call.hasResult && call.result !== undefined && <Result value={call.result} isFailed={call.isError} />
      )}
    </div>
  );
}

/** The output. The text of a failed call begins at its end, where tools say what went wrong. */
function Result({ value, isFailed }: { value: unknown; isFailed: boolean }) {
  // A call that was stopped has its output so far beside the error.
  const shown = typeof value === "string" ? value : text(fields(value).output);
  if (isFailed && shown) return <Output text={shown} view="end" />;
  return <Json value={structured(value)} label="Output" />;
}

/** Servers send structured results as the text of a JSON document. */
function structured(value: unknown): unknown {
  if (typeof value !== "string" || !/^[[{]/.test(value)) return value;
  try {
    return JSON.parse(value);
  } catch {
    return value;
  }
}

export const unknownTool: Tool = { icon: Wrench, Body };
