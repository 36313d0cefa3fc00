import { Cpu } from "lucide-react";
import { fields, list, text } from "@/chat/tools";
import { Rows } from "@/features/tools/parts";
import type { BodyProps, Tool } from "@/features/tools/tool";

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
