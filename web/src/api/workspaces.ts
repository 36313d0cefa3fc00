import { address, del, get, post, put } from "@/api/http";
import type {
  ContextView,
  FolderView,
  ItemsOfMcpServerView,
  ItemsOfTemplateView,
  WorkspaceFileView,
} from "@/api/types.gen";

/** As much of a workspace as a picker shows. */
export interface WorkspaceRow {
  id: string;
  name: string;
  template: string | null;
  driver: string;
  status: string;
  agent_state?: string;
  /** Why it failed, or does not answer. */
  error?: string | null;
  warning?: string | null;
  /** What it may reach since its last start; null before the first. */
  network?: string | null;
  stops_at?: string | null;
}

interface Items<T> {
  items: T[];
}

interface Requested {
  workspace: WorkspaceRow;
}

export const listWorkspaces = () => get<Items<WorkspaceRow>>("/workspaces", { limit: 100 });
export const listTemplates = () => get<ItemsOfTemplateView>("/templates");
export const createWorkspace = (template: string, key: string) =>
  post<Requested>("/workspaces", { template }, { "Idempotency-Key": key });
export const startWorkspace = (id: string) => post<Requested>(`/workspaces/${encodeURIComponent(id)}/start`);
export const stopWorkspace = (id: string) => post<Requested>(`/workspaces/${encodeURIComponent(id)}/stop`);

/** Whose files are looked at: those of a chat's workspace, or of one that a new chat will have. */
export type FilesOf = { chat: string } | { workspace: string };

const at = (of: FilesOf) =>
  "chat" in of ? `/chats/${encodeURIComponent(of.chat)}` : `/workspaces/${encodeURIComponent(of.workspace)}`;

/** A folder of the workspace; `path` ends in a slash, or is empty for where the agent works. */
export const listFolder = (of: FilesOf, path: string, signal?: AbortSignal) =>
  get<FolderView>(`${at(of)}/folder`, { path }, signal);
/** A file of the chat's workspace as text. */
export const readFile = (chat: string, path: string, signal?: AbortSignal) =>
  get<WorkspaceFileView>(`${at({ chat })}/file`, { path }, signal);
/** Where the bytes of that file are. */
export const bytesAddress = (chat: string, path: string) => address(`${at({ chat })}/file/bytes`, { path });
/** What the workspace tells the agent of a chat: instructions, skills, servers of tools. */
export const getContext = (chat: string) => get<ContextView>(`${at({ chat })}/context`);
/** Take over what it tells now. */
export const refreshContext = (chat: string) => put<ContextView>(`${at({ chat })}/context`, undefined);

const serversAt = (workspace: string) => `/workspaces/${encodeURIComponent(workspace)}/mcp-servers`;
/** MCP servers that files of the workspace name. For its owner only. */
export const listServers = (workspace: string) => get<ItemsOfMcpServerView>(serversAt(workspace));
/** Let a server run with the entry of this hash, or not. */
export const answerServer = (workspace: string, hash: string, decision: "agree" | "deny") =>
  put<ItemsOfMcpServerView>(`${serversAt(workspace)}/${hash}`, { decision });
export const withdrawServer = (workspace: string, hash: string) =>
  del<ItemsOfMcpServerView>(`${serversAt(workspace)}/${hash}`);
