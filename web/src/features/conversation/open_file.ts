import { useCallback, useRef } from "react";
import { useSearchParams } from "react-router";
import type { ChatView } from "@/api/types.gen";
import { useFeature } from "@/state/session";

export type OpenFile = (path: string, line?: number | null) => void;

// Below it the panel lies over the conversation, and going back leads out of it.
const BESIDE_PX = 1024;

/** What opens a file of the chat's workspace in the panel; null where there is none, or it is not the reader's. */
export function useOpenFile(chat: ChatView | undefined): OpenFile | null {
  const [, setParams] = useSearchParams();
  const latest = useRef(setParams);
  latest.current = setParams;
  const hasWorkspaces = useFeature("workspaces");
  // The same function for ever: every path of an answer has it.
  const open = useCallback<OpenFile>((path, line = null) => {
    latest.current((params) => withFile(params, path, line), { replace: window.innerWidth >= BESIDE_PX });
  }, []);
  return hasWorkspaces && chat?.my_role === "owner" && chat.workspace_id !== null ? open : null;
}

/** The address with a file in the panel; with none the panel shows the folders. */
export function withFile(params: URLSearchParams, path: string | null, line: number | null): URLSearchParams {
  const next = new URLSearchParams(params);
  next.set("panel", "files");
  next.delete("file");
  next.delete("line");
  if (path) next.set("file", path);
  if (path && line) next.set("line", String(line));
  return next;
}
