import { get, post } from "@/api/http";
import type { FolderView } from "@/api/types.gen";

/** As much of a workspace as a picker shows. */
export interface WorkspaceRow {
  id: string;
  name: string;
  template: string | null;
  driver: string;
  status: string;
  warning?: string | null;
  stops_at?: string | null;
}

export interface TemplateRow {
  name: string;
  display_name: string;
  description: string;
}

interface Items<T> {
  items: T[];
}

interface Requested {
  workspace: WorkspaceRow;
}

export const listWorkspaces = () => get<Items<WorkspaceRow>>("/workspaces", { limit: 100 });
export const listTemplates = () => get<Items<TemplateRow>>("/templates");
export const createWorkspace = (template: string, key: string) =>
  post<Requested>("/workspaces", { template }, { "Idempotency-Key": key });
export const startWorkspace = (id: string) => post<Requested>(`/workspaces/${encodeURIComponent(id)}/start`);
export const stopWorkspace = (id: string) => post<Requested>(`/workspaces/${encodeURIComponent(id)}/stop`);
/** A folder of the chat's workspace; `path` ends in a slash, or is empty for where the agent works. */
export const listFolder = (chat: string, path: string, signal?: AbortSignal) =>
  get<FolderView>(`/chats/${encodeURIComponent(chat)}/folder`, { path }, signal);
