import { LayoutTemplate } from "lucide-react";
import { fields, list, text } from "@/chat/tool_texts";
import { Note, Rows } from "./card_bodies";
import type { BodyProps, Tool } from "./tool_display";

function Body({ call }: BodyProps) {
  const result = fields(call.result);
  const parameters = list(result.parameters);
  return (
    <div className="space-y-2">
      <Note>{text(fields(result.template).description)}</Note>
      {parameters.length > 0 && (
        <Rows
          head={["Parameter", "Type", "Default"]}
          rows={parameters.map((one) => [
            `${text(one.display_name) || text(one.name)}${one.required === true ? " (required)" : ""}`,
            text(one.type),
            one.default === undefined || one.default === null ? "" : String(one.default),
          ])}
        />
      )}
    </div>
  );
}

export const readTemplate: Tool = { icon: LayoutTemplate, Body };
