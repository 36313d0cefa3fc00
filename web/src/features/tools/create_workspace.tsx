import { PackagePlus } from "lucide-react";
import type { Tool } from "@/features/tools/tool";
import { WorkspaceBody } from "@/features/tools/workspace_card";

export const createWorkspace: Tool = { icon: PackagePlus, Body: WorkspaceBody, opensWhileRunning: true };
