import { FileText } from "lucide-react";
import { fields, number, text } from "@/chat/tool_texts";
import { languageOfPath } from "@/features/timeline/highlighter";
import { PathLink } from "@/features/timeline/path_link";
import { Code, Facts, Note } from "./card_bodies";
import type { BodyProps, Tool } from "./tool_display";

/** Remove the line numbers from the result; the card shows them separately. */
export function withoutNumbers(content: string): { first: number; lines: string } {
  const rows = content.replace(/\n$/, "").split("\n");
  const first = Number(/^\s*(\d+)\t/.exec(rows[0] ?? "")?.[1] ?? "1");
  return { first, lines: rows.map((row) => row.replace(/^\s*\d+\t/, "")).join("\n") };
}

function Body({ call }: BodyProps) {
  const path = text(fields(call.args).path);
  const result = fields(call.result);
  const { first, lines } = withoutNumbers(text(result.content));
  return (
    <div className="space-y-2">
      {lines ? (
        <Code text={lines} language={languageOfPath(path)} label="Content" firstLine={first} />
      ) : (
        call.hasResult && !call.isError && <Note>The file is empty.</Note>
      )}
      <Facts
        facts={[
          ["Path", <PathLink key="path" path={path} line={first > 1 ? first : null} />],
          [
            "Lines",
            number(result.total_lines) === null
              ? null
              : `${number(result.lines_read) ?? "?"} of ${number(result.total_lines)}`,
          ],
        ]}
      />
    </div>
  );
}

export const readFile: Tool = { icon: FileText, Body };
