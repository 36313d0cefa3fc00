import { FilePen } from "lucide-react";
import { fields, number, text } from "@/chat/tool_texts";
import { languageOfPath } from "@/features/timeline/highlighter";
import { PathLink } from "@/features/timeline/path_link";
import { Code, Diff, Facts, Note } from "./card_bodies";
import type { BodyProps, Tool } from "./tool_display";

function Body({ call, state }: BodyProps) {
  const args = fields(call.args);
  const result = fields(call.result);
  const path = text(args.path);
  const applied = state !== "failed" && state !== "stopped" && state !== "denied";
  return (
    <div className="space-y-2">
      {!applied && state !== "denied" && <Note warn>Nothing was written.</Note>}
      {applied && text(result.diff) ? (
        <Diff diff={text(result.diff)} label="Change" />
      ) : (
        text(args.content) && (
          <Code text={text(args.content)} language={languageOfPath(path)} label="Content" firstLine={1} />
        )
      )}
      <Facts
        facts={[
          ["Path", <PathLink key="path" path={path} />],
          [
            "Size",
            number(result.bytes) === null
              ? null
              : `${number(result.bytes)} bytes${result.created === true ? ", new file" : ""}`,
          ],
        ]}
      />
    </div>
  );
}

export const writeFile: Tool = { icon: FilePen, Body };
