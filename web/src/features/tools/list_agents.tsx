import { Bot } from "lucide-react";
import { fields, list, text } from "@/chat/tools";
import { Rows } from "@/features/tools/parts";
import type { BodyProps, Tool } from "@/features/tools/tool";

function Body({ call }: BodyProps) {
  const agents = list(fields(call.result).agents);
  if (!call.hasResult || call.isError) return null;
  return (
    <Rows
      head={["Agent", "Kind", "Status"]}
      rows={agents.map((one) => [text(one.title), text(one.type), text(one.status)])}
    />
  );
}

export const listAgents: Tool = { icon: Bot, Body };
