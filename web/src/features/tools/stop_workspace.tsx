import { Square } from "lucide-react";
import { WorkspaceBody } from "@/features/tools/workspace_card";
import type { Tool } from "./tool_display";

export const stopWorkspace: Tool = { icon: Square, Body: WorkspaceBody, opensWhileRunning: true };
