import { PackagePlus } from "lucide-react";
import { WorkspaceBody } from "@/features/tools/workspace_card";
import type { Tool } from "./tool_display";

export const createWorkspace: Tool = { icon: PackagePlus, Body: WorkspaceBody, opensWhileRunning: true };
