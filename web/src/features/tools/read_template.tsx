import { LayoutTemplate } from "lucide-react";
import { fields, list, text } from "@/chat/tools";
import { Note, Rows } from "@/features/tools/parts";
import type { BodyProps, Tool } from "@/features/tools/tool";

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
