import { useQuery } from "@tanstack/react-query";
import { ChevronRight, File as FileIcon, Folder, FolderOpen, RefreshCw } from "lucide-react";
import { useEffect, useRef, useState } from "react";
import { useStore } from "zustand";
import { sentence } from "@/api/errors";
import type { ChatView, FolderEntryView } from "@/api/types.gen";
import { listFolder } from "@/api/workspaces";
import { foldersTo } from "@/chat/file_paths";
import { FileView, fileQuery } from "@/features/panel/file_view";
import {
  Empty,
  NotRunning,
  StartupLines,
  useWorkspaceName,
  useWorkspaceStatus,
  Waiting,
} from "@/features/panel/workspace_state";
import { sizeOf } from "@/features/timeline/message_files";
import { chatSession } from "@/state/chat_sessions";
import { queryClient } from "@/state/queries";
import { Button, IconButton } from "@/ui/button";
import { cx } from "@/ui/cx";

interface Props {
  chat: ChatView;
  /** The open file, and the line to scroll to. */
  file: string | null;
  line: number | null;
  onFile: (path: string | null) => void;
}

// The expanded folders of each chat, until the page is closed.
const opened = new Map<string, ReadonlySet<string>>();
const NONE: ReadonlySet<string> = new Set();

/** The tab with the files of a chat's workspace: a folder tree and a file view. */
export function FilesTab(props: Props) {
  const { chat } = props;
  const status = useWorkspaceStatus(chat);
  if (chat.my_role !== "owner") return <Empty text="Only the chat's owner can see its workspace." />;
  if (chat.workspace_id === null) {
    return <Empty text="This chat has no workspace. Choose one below the message to see its files." />;
  }
  if (status === null) return <Waiting text="Looking at the workspace" />;
  if (status !== "running") return <NotRunning chat={chat} status={status} />;
  return <Files key={chat.id} {...props} />;
}

function Files({ chat, file, line, onFile }: Props) {
  const name = useWorkspaceName(chat);
  const [open, setOpen] = useState(opened.get(chat.id) ?? NONE);
  useEffect(() => void opened.set(chat.id, open), [chat.id, open]);
  const toggle = (folder: string) =>
    setOpen((old) => {
      const next = new Set(old);
      if (!next.delete(folder)) next.add(folder);
      return next;
    });
  const refresh = () => {
    void queryClient.invalidateQueries({ queryKey: ["folder", { chat: chat.id }] });
    void queryClient.invalidateQueries({ queryKey: ["file", chat.id] });
  };
  useTurnEnd(chat.id, refresh);
  // The given path may be absolute; the response has the path relative to the working folder.
  const { data } = useQuery({ ...fileQuery(chat.id, file ?? ""), enabled: file !== null });
  const path = file === null ? null : (data?.path ?? file);
  useEffect(() => {
    if (path && !path.startsWith("/")) setOpen((old) => new Set([...old, ...foldersTo(path)]));
  }, [path]);
  return (
    <div className="flex min-h-0 flex-1 flex-col">
      <div className="flex h-10 shrink-0 items-center gap-2 border-b border-line pr-2 pl-3">
        <h2 className="min-w-0 flex-1 truncate font-medium">{name ?? "Workspace"}</h2>
        <IconButton label="Look again" size="small" onClick={refresh}>
          <RefreshCw />
        </IconButton>
      </div>
      <StartupLines chat={chat} />
      <nav
        aria-label="Files of the workspace"
        className={cx(
          "overflow-y-auto p-1",
          file === null ? "min-h-0 flex-1" : "max-h-[35%] shrink-0 border-b border-line",
        )}
      >
        <FolderRows chat={chat.id} path="" depth={0} open={open} current={path} onToggle={toggle} onFile={onFile} />
      </nav>
      {file !== null && <FileView key={file} chatId={chat.id} path={file} line={line} onClose={() => onFile(null)} />}
    </div>
  );
}

/** Call `act` when a turn of the chat ends. */
function useTurnEnd(chatId: string, act: () => void): void {
  const isActive = useStore(chatSession(chatId).store, (state) => state.data.status === "running");
  const before = useRef(isActive);
  const latest = useRef(act);
  latest.current = act;
  useEffect(() => {
    if (before.current && !isActive) latest.current();
    before.current = isActive;
  }, [isActive]);
}

interface FolderProps {
  chat: string;
  /** Ends with a slash; empty for the working folder. */
  path: string;
  depth: number;
  open: ReadonlySet<string>;
  current: string | null;
  onToggle: (folder: string) => void;
  onFile: (path: string) => void;
}

const INDENT_PX = 16;
const ROW =
  "flex h-7 w-full items-center gap-1.5 rounded-md pr-2 text-left hover:bg-bg3 pointer-coarse:h-11 [&_svg]:size-4 [&_svg]:shrink-0";

function FolderRows(props: FolderProps) {
  const { chat, path, depth, open, current, onToggle, onFile } = props;
  const { data, error, refetch } = useQuery({
    queryKey: ["folder", { chat }, path],
    queryFn: ({ signal }) => listFolder({ chat }, path, signal),
    retry: false,
    staleTime: 10_000,
  });
  const indent = { paddingLeft: 8 + depth * INDENT_PX };
  if (error && !data) {
    return (
      <div style={indent} className="flex items-center gap-2 py-1 text-small text-muted">
        <span className="min-w-0 flex-1">{sentence(error)}</span>
        <Button size="small" onClick={() => void refetch()}>
          Try again
        </Button>
      </div>
    );
  }
  if (!data) return depth === 0 ? <Waiting text="Looking at the files" /> : null;
  if (data.entries.length === 0) {
    return (
      <p style={indent} className="py-1 text-small text-muted">
        {depth === 0 ? "The workspace is empty. Files that the agent makes appear here." : "Empty"}
      </p>
    );
  }
  return (
    <ul>
      {data.entries.map((entry) => {
        const whole = `${path}${entry.name}${entry.is_dir ? "/" : ""}`;
        return (
          <li key={whole}>
            {entry.is_dir ? (
              <>
                <FolderRow
                  name={entry.name}
                  indent={indent}
                  isOpen={open.has(whole)}
                  onToggle={() => onToggle(whole)}
                />
                {open.has(whole) && <FolderRows {...props} path={whole} depth={depth + 1} />}
              </>
            ) : (
              <FileRow entry={entry} indent={indent} isCurrent={whole === current} onOpen={() => onFile(whole)} />
            )}
          </li>
        );
      })}
      {data.truncated && (
        <li style={indent} className="py-1 text-small text-muted">
          More names than are shown.
        </li>
      )}
    </ul>
  );
}

interface FolderRowProps {
  name: string;
  indent: { paddingLeft: number };
  isOpen: boolean;
  onToggle: () => void;
}

function FolderRow({ name, indent, isOpen, onToggle }: FolderRowProps) {
  const Icon = isOpen ? FolderOpen : Folder;
  return (
    <button type="button" aria-expanded={isOpen} onClick={onToggle} style={indent} className={ROW}>
      <ChevronRight aria-hidden className={cx("text-muted transition-transform", isOpen && "rotate-90")} />
      <Icon aria-hidden className="text-muted" />
      <span className="min-w-0 flex-1 truncate" title={name}>
        {name}
      </span>
    </button>
  );
}

interface FileRowProps {
  entry: FolderEntryView;
  indent: { paddingLeft: number };
  isCurrent: boolean;
  onOpen: () => void;
}

function FileRow({ entry, indent, isCurrent, onOpen }: FileRowProps) {
  return (
    <button
      type="button"
      aria-current={isCurrent ? "true" : undefined}
      onClick={onOpen}
      style={{ paddingLeft: indent.paddingLeft + 22 }}
      className={cx(ROW, isCurrent && "bg-bg3 font-medium")}
    >
      <FileIcon aria-hidden className="text-muted" />
      <span className="min-w-0 flex-1 truncate" title={entry.name}>
        {entry.name}
      </span>
      <span className="shrink-0 text-small text-muted tabular-nums">{sizeOf(entry.size)}</span>
    </button>
  );
}
