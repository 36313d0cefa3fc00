import { del, get, patch, post } from "@/api/http";
import type {
  ItemsOfCatalogEntry,
  ItemsOfMcpServerView,
  McpConnectView,
  McpDisconnectView,
  McpServerChange,
  McpServerCreate,
  McpServerView,
  McpTestView,
  McpToolsView,
} from "@/api/types.gen";

/** Servers of the deployment are changed by administrators, and own servers by their users. */
const base = (isOwn: boolean) => (isOwn ? "/me/mcp-servers" : "/mcp-servers");
const at = (id: string, isOwn = false) => `${base(isOwn)}/${encodeURIComponent(id)}`;

export const listMcpServers = () => get<ItemsOfMcpServerView>("/mcp-servers");
export const getMcpServer = (id: string) => get<McpServerView>(at(id));
export const listMcpCatalog = () => get<ItemsOfCatalogEntry>("/mcp-servers/catalog");
export const listMcpTools = (id: string) => get<McpToolsView>(`${at(id)}/tools`);
export const createMcpServer = (isOwn: boolean, body: McpServerCreate) => post<McpServerView>(base(isOwn), body);
export const patchMcpServer = (one: McpServerView, body: McpServerChange) =>
  patch<McpServerView>(at(one.id, one.is_own), body);
export const deleteMcpServer = (one: McpServerView) => del(at(one.id, one.is_own));
export const testMcpServer = (one: McpServerView) => post<McpTestView>(`${at(one.id, one.is_own)}/test`);
export const connectMcpServer = (id: string) => post<McpConnectView>(`${at(id)}/oauth/connect`);
export const disconnectMcpServer = (id: string) => del<McpDisconnectView>(`${at(id)}/oauth`);
