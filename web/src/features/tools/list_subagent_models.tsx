import { Cpu } from "lucide-react";
import { fields, list, text } from "@/chat/tool_texts";
import { Rows } from "./card_bodies";
import type { BodyProps, Tool } from "./tool_display";

function Body({ call }: BodyProps) {
  const models = list(fields(call.result).models);
  return (
    <Rows
      head={["Model", "Provider"]}
      rows={models.map((one) => [text(one.display_name) || text(one.model), text(one.provider)])}
    />
  );
}

export const listSubagentModels: Tool = { icon: Cpu, Body, showsResult: true };
