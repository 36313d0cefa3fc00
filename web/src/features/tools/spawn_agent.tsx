import { Bot } from "lucide-react";
import { AgentBody } from "@/features/tools/agent_card";
import type { Tool } from "@/features/tools/tool";

export const spawnAgent: Tool = { icon: Bot, Body: AgentBody };
