import type { ComponentType, LazyExoticComponent } from "react";
import type { Me } from "@/api/types.gen";
import { lazyPart } from "@/ui/lazy_part";

export interface SettingsEntry {
  id: string;
  title: string;
  group: "You" | "Server";
  /** The roles that may open the page. */
  roles?: Me["role"][];
  /** The feature of the server that the page is about. Without it, the page is not in the menu. */
  feature?: string;
  component: LazyExoticComponent<ComponentType>;
}

const ADMIN: Me["role"][] = ["admin"];
const READERS: Me["role"][] = ["admin", "auditor"];

/** All settings pages, in the order of the menu. */
export const PAGES: SettingsEntry[] = [
  page("profile", "Profile", "You", () => import("@/features/settings/profile"), "Profile"),
  page("appearance", "Appearance", "You", () => import("@/features/settings/appearance"), "Appearance"),
  page("chat", "Chat", "You", () => import("@/features/settings/chat"), "Chat"),
  page("instructions", "Instructions", "You", () => import("@/features/settings/instructions"), "Instructions"),
  page("saved-prompts", "Saved prompts", "You", () => import("@/features/settings/saved_prompts"), "SavedPrompts"),
  page("approvals", "Approvals", "You", () => import("@/features/settings/approvals"), "Approvals"),
  page("agent-kinds", "Subagents", "You", () => import("@/features/settings/agent_kinds"), "AgentKinds"),
  page(
    "own-workspaces",
    "Your workspaces",
    "You",
    () => import("@/features/settings/own_workspaces"),
    "OwnWorkspaces",
    undefined,
    "workspaces",
  ),
  page("notifications", "Notifications", "You", () => import("@/features/settings/notifications"), "Notifications"),
  page("connections", "Connections", "You", () => import("./own_mcp_servers"), "Connections", undefined, "mcp servers"),
  page("keys", "Provider keys", "You", () => import("./own_provider_keys"), "Keys"),
  page("tokens", "API tokens", "You", () => import("@/features/settings/tokens"), "Tokens"),
  page("providers", "Providers", "Server", () => import("@/features/settings/providers"), "Providers", READERS),
  page("models", "Models", "Server", () => import("@/features/settings/models"), "Models", READERS),
  page("mcp", "MCP servers", "Server", () => import("./deployment_mcp_servers"), "Mcp", READERS, "mcp servers"),
  page("agent", "Agent", "Server", () => import("@/features/settings/agent"), "Agent", READERS),
  page("workspaces", "Workspaces", "Server", () => import("@/features/settings/workspaces"), "Workspaces", READERS),
  page("users", "Users", "Server", () => import("@/features/settings/users"), "Users", READERS),
  page("limits", "Spending and sharing", "Server", () => import("./spend_limits"), "Limits", ADMIN),
  page("retention", "Retention", "Server", () => import("@/features/settings/retention"), "Retention", READERS),
  page("debug", "Debug records", "Server", () => import("@/features/settings/debug"), "Debug", READERS, "debug"),
  page("usage", "Usage of everyone", "Server", () => import("@/features/settings/all_usage"), "AllUsage", READERS),
  page("audit", "Audit log", "Server", () => import("@/features/settings/audit"), "Audit", READERS),
  page("health", "Health", "Server", () => import("./server_health"), "Health", READERS),
];

function page<N extends string>(
  id: string,
  title: string,
  group: "You" | "Server",
  load: () => Promise<Record<N, ComponentType>>,
  name: N,
  roles?: Me["role"][],
  feature?: string,
): SettingsEntry {
  const component = lazyPart(async () => (await load())[name]);
  return { id, title, group, component, ...(roles ? { roles } : {}), ...(feature ? { feature } : {}) };
}
