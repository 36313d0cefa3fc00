import { FilePen } from "lucide-react";
import { diffCounts, fields, list, text } from "@/chat/tool_texts";
import { PathLink } from "@/features/timeline/path_link";
import { Diff, Note } from "./card_bodies";
import type { BodyProps, Tool } from "./tool_display";

function Body({ call, state }: BodyProps) {
  const files = list(fields(call.result).files);
  if (state === "failed" || state === "stopped") return <Note warn>Nothing was changed.</Note>;
  if (!call.hasResult || state === "denied") return <Intended args={fields(call.args)} />;
  return (
    <div className="space-y-3">
      {files.map((file, index) => {
        const diff = text(file.diff);
        const { added, removed } = diffCounts(diff);
        return (
          <div key={index} className="space-y-1">
            <p className="flex items-center gap-2 text-small">
              <span className="min-w-0 flex-1 truncate font-mono">
                <PathLink path={text(file.path)} />
              </span>
              <span className="text-ok">+{added}</span>
              <span className="text-danger">-{removed}</span>
            </p>
            {diff ? <Diff diff={diff} label={`Change of ${text(file.path)}`} /> : <Note>No difference.</Note>}
          </div>
        );
      })}
    </div>
  );
}

/** The edits that the model wants to make. */
export function Intended({ args }: { args: Record<string, unknown> }) {
  return (
    <div className="space-y-2">
      {list(args.files).map((file, at) => (
        <div key={at} className="space-y-1">
          <p className="font-mono text-small">{text(file.path)}</p>
          {list(file.edits).map((edit, index) => (
            <Diff
              key={index}
              label="Intended change"
              diff={[
                ...text(edit.old_text)
                  .split("\n")
                  .map((line) => `-${line}`),
                ...text(edit.new_text)
                  .split("\n")
                  .map((line) => `+${line}`),
              ].join("\n")}
            />
          ))}
        </div>
      ))}
    </div>
  );
}

export const editFiles: Tool = { icon: FilePen, Body };
