import { Square } from "lucide-react";
import type { Tool } from "@/features/tools/tool";
import { WorkspaceBody } from "@/features/tools/workspace_card";

export const stopWorkspace: Tool = { icon: Square, Body: WorkspaceBody, opensWhileRunning: true };
