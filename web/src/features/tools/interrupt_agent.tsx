import { CircleStop } from "lucide-react";
import { AgentBody } from "@/features/tools/agent_card";
import type { Tool } from "@/features/tools/tool";

export const interruptAgent: Tool = { icon: CircleStop, Body: AgentBody };
