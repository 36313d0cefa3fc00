import { ListTree } from "lucide-react";
import { fields, list, text } from "@/chat/tool_texts";
import { Note, Rows } from "./card_bodies";
import type { BodyProps, Tool } from "./tool_display";

function Body({ call }: BodyProps) {
  const processes = list(fields(call.result).processes);
  if (processes.length === 0) return <Note>No processes.</Note>;
  return (
    <Rows
      head={["Command", "State", "Started"]}
      rows={processes.map((one) => [
        <code key="c" className="font-mono">
          {text(one.command)}
        </code>,
        one.running === true ? "running" : `exited with ${String(one.exit_code ?? "?")}`,
        text(one.started_at).slice(11, 19),
      ])}
    />
  );
}

export const processList: Tool = { icon: ListTree, Body, showsResult: true };
