import type { Action } from "@/api/types.gen";
import { actionOf } from "@/chat/approval_texts";
import { fields, text } from "@/chat/tool_texts";
import { languageOfPath } from "@/features/timeline/highlighter";
import { Intended } from "@/features/tools/edit_files";
import { Code, Json, Output } from "./card_bodies";

export type AskedCall = Action["tool_calls"][number];

/** A call that waits for the user: its action, and what it would do: a command, a file, a diff, or its arguments. */
export function Asked({ call }: { call: AskedCall }) {
  return (
    <>
      <p>{actionOf(call.tool_name, call.args)}</p>
      <Details call={call} />
    </>
  );
}

function Details({ call }: { call: AskedCall }) {
  const args = fields(call.args);
  if (text(args.command)) return <Output label="Command" text={`$ ${text(args.command)}`} />;
  if (call.tool_name === "edit_files") return <Intended args={args} />;
  if (call.tool_name === "write_file")
    return (
      <>
        <p className="font-mono text-small break-words">{text(args.path)}</p>
        <Code text={text(args.content)} language={languageOfPath(text(args.path))} label="Content" firstLine={1} />
      </>
    );
  if (text(args.path)) return <p className="font-mono text-small break-words">{text(args.path)}</p>;
  return Object.keys(args).length > 0 ? <Json value={call.args} label="Input" /> : null;
}
