import { address, del, get, patch, post, put } from "@/api/http";
import type {
  ContextView,
  FolderView,
  ItemsOfTemplateView,
  ItemsOfWorkspaceMcpServerView,
  WorkspaceFileView,
} from "@/api/types.gen";

/** The fields of a workspace that a picker shows. */
export interface WorkspaceRow {
  id: string;
  name: string;
  template: string | null;
  /** The values of the template's parameters; secrets are masked. */
  parameters?: Record<string, unknown>;
  driver: string;
  status: string;
  agent_state?: string;
  /** The exit code of the last startup script; null before its end. */
  startup_exit_code?: number | null;
  /** The running operation. */
  operation?: { id: string } | null;
  /** The operation whose log has the output of the startup script, while that runs or after it failed. */
  startup_operation?: string | null;
  /** The reason if it failed or does not respond. */
  error?: string | null;
  error_code?: string | null;
  warning?: string | null;
  /** The network that it has since its last start; null before the first start. */
  network?: string | null;
  stops_at?: string | null;
}

interface Items<T> {
  items: T[];
}

export interface Requested {
  workspace: WorkspaceRow;
  operation?: { id: string } | null;
}

export const listWorkspaces = () => get<Items<WorkspaceRow>>("/workspaces", { limit: 100 });
export const listTemplates = () => get<ItemsOfTemplateView>("/templates");
/** The fields of a new workspace besides its template. */
export interface NewWorkspace {
  name?: string;
  parameters?: Record<string, unknown>;
}

export const createWorkspace = (template: string, key: string, body: NewWorkspace = {}) =>
  post<Requested>("/workspaces", { template, ...body }, { "Idempotency-Key": key });
export const renameWorkspace = (id: string, name: string) =>
  patch<WorkspaceRow>(`/workspaces/${encodeURIComponent(id)}`, { name });
export const startWorkspace = (id: string) => post<Requested>(`/workspaces/${encodeURIComponent(id)}/start`);
export const stopWorkspace = (id: string) => post<Requested>(`/workspaces/${encodeURIComponent(id)}/stop`);

const STOP_TRIES = 120;
const STOP_WAIT_MS = 500;

/** Stop a workspace, and start it again when it is stopped. Its startup script then runs again. */
export async function restartWorkspace(id: string): Promise<Requested> {
  await stopWorkspace(id);
  for (let left = STOP_TRIES; left > 0; left -= 1) {
    const { status } = await get<WorkspaceRow>(`/workspaces/${encodeURIComponent(id)}`);
    if (status !== "running" && status !== "stopping") break;
    await new Promise((resolve) => setTimeout(resolve, STOP_WAIT_MS));
  }
  return startWorkspace(id);
}

/** The workspace whose files are listed: that of a chat, or one chosen for a new chat. */
export type FilesOf = { chat: string } | { workspace: string };

const at = (of: FilesOf) =>
  "chat" in of ? `/chats/${encodeURIComponent(of.chat)}` : `/workspaces/${encodeURIComponent(of.workspace)}`;

/** List a folder of the workspace. `path` ends with a slash; the empty path is the working folder. */
export const listFolder = (of: FilesOf, path: string, signal?: AbortSignal) =>
  get<FolderView>(`${at(of)}/folder`, { path }, signal);
/** Return a file of the chat's workspace as text. */
export const readFile = (chat: string, path: string, signal?: AbortSignal) =>
  get<WorkspaceFileView>(`${at({ chat })}/file`, { path }, signal);
/** Return the address of the file's bytes. */
export const bytesAddress = (chat: string, path: string) => address(`${at({ chat })}/file/bytes`, { path });
/** Return the captured context of a chat: instructions, skills and MCP servers of its workspace. */
export const getContext = (chat: string) => get<ContextView>(`${at({ chat })}/context`);
/** Capture the current context of the workspace. */
export const refreshContext = (chat: string) => put<ContextView>(`${at({ chat })}/context`, undefined);

const serversAt = (workspace: string) => `/workspaces/${encodeURIComponent(workspace)}/mcp-servers`;
/** List the MCP servers that files of the workspace define. For the owner of the workspace. */
export const listServers = (workspace: string) => get<ItemsOfWorkspaceMcpServerView>(serversAt(workspace));
/** Allow or deny the MCP server with the entry of this hash. */
export const answerServer = (workspace: string, hash: string, decision: "agree" | "deny") =>
  put<ItemsOfWorkspaceMcpServerView>(`${serversAt(workspace)}/${hash}`, { decision });
export const withdrawServer = (workspace: string, hash: string) =>
  del<ItemsOfWorkspaceMcpServerView>(`${serversAt(workspace)}/${hash}`);
