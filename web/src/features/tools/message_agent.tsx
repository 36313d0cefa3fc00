import { MessageSquare } from "lucide-react";
import { AgentBody, AgentLabel } from "@/features/tools/agent_card";
import type { Tool } from "./tool_display";

export const messageAgent: Tool = { icon: MessageSquare, Label: AgentLabel, Body: AgentBody };
