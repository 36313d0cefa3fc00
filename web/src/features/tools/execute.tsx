import { SquareTerminal } from "lucide-react";
import { fields, hasRun, number, text } from "@/chat/tool_texts";
import { Facts, Note, Output, outputView } from "./card_bodies";
import type { BodyProps, Tool } from "./tool_display";

function Body({ call, state }: BodyProps) {
  const args = fields(call.args);
  const result = fields(call.result);
  const output = call.hasResult ? text(result.output) : call.output;
  const cut = fields(result.truncated);
  const exit = number(result.exit_code);
  return (
    <div className="space-y-2">
      <Output label="Command" text={`$ ${text(args.command)}`} />
      {output && <Output text={output} view={outputView(!call.hasResult, call.isError || (exit ?? 0) !== 0)} />}
      {!output && (state === "done" || (state === "stopped" && hasRun(result))) && <Note>No output.</Note>}
      {number(cut.omitted_bytes) !== null && (
        <Note>{Math.round((number(cut.omitted_bytes) ?? 0) / 1024)} KiB in the middle were left out.</Note>
      )}
      {!call.isError && text(result.error) && <Note warn>{text(result.error)}</Note>}
      {text(result.note) && <Note>{text(result.note)}</Note>}
      <Facts
        facts={[
          ["Exit code", exit !== null && exit >= 0 ? String(exit) : null],
          ["Folder", text(args.workdir)],
          ["Process", text(result.background_process_id)],
        ]}
      />
    </div>
  );
}

export const execute: Tool = { icon: SquareTerminal, Body, opensWhileRunning: false };
