import { useCallback, useRef } from "react";
import { useSearchParams } from "react-router";
import type { ChatView } from "@/api/types.gen";
import { useFeature } from "@/state/login_session";

export type OpenFile = (path: string, line?: number | null) => void;

// On narrower screens the panel covers the conversation, and the back button closes it.
const BESIDE_PX = 1024;

/** Return a function that opens a file of the chat's workspace in the panel; null if the user may not see it. */
export function useOpenFile(chat: ChatView | undefined): OpenFile | null {
  const [, setParams] = useSearchParams();
  const latest = useRef(setParams);
  latest.current = setParams;
  const hasWorkspaces = useFeature("workspaces");
  // The function never changes, because every path in an answer uses it.
  const open = useCallback<OpenFile>((path, line = null) => {
    latest.current((params) => withFile(params, path, line), { replace: window.innerWidth >= BESIDE_PX });
  }, []);
  return hasWorkspaces && chat?.my_role === "owner" && chat.workspace_id !== null ? open : null;
}

/** Return the URL parameters that open a file in the panel; without a file, the panel lists folders. */
export function withFile(params: URLSearchParams, path: string | null, line: number | null): URLSearchParams {
  const next = new URLSearchParams(params);
  next.set("panel", "files");
  next.delete("file");
  next.delete("line");
  if (path) next.set("file", path);
  if (path && line) next.set("line", String(line));
  return next;
}
