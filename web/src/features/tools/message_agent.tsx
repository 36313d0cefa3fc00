import { MessageSquare } from "lucide-react";
import { AgentBody } from "@/features/tools/agent_card";
import type { Tool } from "@/features/tools/tool";

export const messageAgent: Tool = { icon: MessageSquare, Body: AgentBody };
