import { Play } from "lucide-react";
import type { Tool } from "@/features/tools/tool";
import { WorkspaceBody } from "@/features/tools/workspace_card";

export const startWorkspace: Tool = { icon: Play, Body: WorkspaceBody, opensWhileRunning: true };
