import { CircleStop } from "lucide-react";
import { AgentBody, AgentLabel } from "@/features/tools/agent_card";
import type { Tool } from "./tool_display";

export const interruptAgent: Tool = { icon: CircleStop, Label: AgentLabel, Body: AgentBody };
