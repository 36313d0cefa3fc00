import { Hourglass } from "lucide-react";
import { AgentBody } from "@/features/tools/agent_card";
import type { Tool } from "@/features/tools/tool";

export const waitAgent: Tool = { icon: Hourglass, Body: AgentBody };
