import { LayoutTemplate } from "lucide-react";
import { fields, list, text } from "@/chat/tool_texts";
import { Note } from "./card_bodies";
import type { BodyProps, Tool } from "./tool_display";

function Body({ call }: BodyProps) {
  const result = fields(call.result);
  const templates = list(result.templates);
  if (templates.length === 0) return <Note>No templates.</Note>;
  return (
    <ul className="space-y-2">
      {templates.map((one) => (
        <li key={text(one.id)}>
          <span className="font-medium">{text(one.display_name) || text(one.name)}</span>
          {one.id === result.recommended_template_id && (
            <span className="ml-2 rounded bg-bg3 px-1.5 text-small text-ok">recommended</span>
          )}
          <span className="block text-small text-muted">{text(one.description)}</span>
        </li>
      ))}
    </ul>
  );
}

export const listTemplates: Tool = { icon: LayoutTemplate, Body, showsResult: true };
