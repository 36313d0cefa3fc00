import { ClipboardList } from "lucide-react";
import { PlanCard } from "@/features/tools/plan_card";
import type { Tool } from "./tool_display";

export const proposePlan: Tool = { icon: ClipboardList, Card: PlanCard };
