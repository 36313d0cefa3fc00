import { Bot } from "lucide-react";
import { toldState } from "@/chat/agents";
import { fields, list, text } from "@/chat/tools";
import { StateText } from "@/features/tools/agent_line";
import { Rows } from "@/features/tools/parts";
import type { BodyProps, Tool } from "@/features/tools/tool";

function Body({ call }: BodyProps) {
  const agents = list(fields(call.result).agents);
  return (
    <Rows
      head={["Agent", "Kind", "Status"]}
      rows={agents.map((one) => [text(one.title), text(one.type), <StateText key="s" state={toldState(one)} />])}
    />
  );
}

export const listAgents: Tool = { icon: Bot, Body, showsResult: true };
