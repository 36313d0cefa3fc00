import { Bot } from "lucide-react";
import { toldState } from "@/chat/subagent_texts";
import { fields, list, text } from "@/chat/tool_texts";
import { StateText } from "@/features/tools/agent_line";
import { Rows } from "./card_bodies";
import type { BodyProps, Tool } from "./tool_display";

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
