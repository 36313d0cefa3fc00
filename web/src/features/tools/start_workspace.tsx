import { Play } from "lucide-react";
import { WorkspaceBody } from "@/features/tools/workspace_card";
import type { Tool } from "./tool_display";

export const startWorkspace: Tool = { icon: Play, Body: WorkspaceBody, opensWhileRunning: true };
