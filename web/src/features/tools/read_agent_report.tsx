import { FileText } from "lucide-react";
import { AgentBody, AgentLabel } from "@/features/tools/agent_card";
import type { Tool } from "./tool_display";

export const readAgentReport: Tool = { icon: FileText, Label: AgentLabel, Body: AgentBody };
