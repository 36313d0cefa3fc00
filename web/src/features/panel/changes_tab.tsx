import { useQuery } from "@tanstack/react-query";
import { useVirtualizer } from "@tanstack/react-virtual";
import { ChevronDown, ChevronRight, Copy, GitBranch } from "lucide-react";
import { useMemo, useRef, useState } from "react";
import { useStore } from "zustand";
import { get } from "@/api/http";
import type { ChatView } from "@/api/types.gen";
import { type ChangedFile, type ChangeLine, changedFiles, changeLines } from "@/chat/changes";
import { chatSession } from "@/state/chat_sessions";
import { useFeature } from "@/state/session";
import { IconButton } from "@/ui/button";
import { cx } from "@/ui/cx";
import { Ago } from "@/ui/time";
import { toast } from "@/ui/toast";

const LINE_PX = 20;
const FILE_PX = 36;
const SIGNS = { added: "+", removed: "-", same: " " } as const;

/** What a chat changed: its repositories in sum, and its own edits line by line. */
export function ChangesTab({ chat }: { chat: ChatView }) {
  const session = chatSession(chat.id);
  const messages = useStore(session.store, (state) => state.data.messages);
  const hasMore = useStore(session.store, (state) => state.data.hasMore);
  const files = useMemo(() => changedFiles([...messages.values()].sort((a, b) => a.id - b.id)), [messages]);
  return (
    <div className="flex min-h-0 flex-1 flex-col">
      {chat.workspace_id && <Repositories chatId={chat.id} />}
      {files.length === 0 ? (
        <p className="m-auto max-w-64 p-6 text-center text-muted">
          No file was edited in this chat{hasMore ? " as far as it is loaded" : ""}. What commands change is not seen
          here.
        </p>
      ) : (
        <Lines files={files} />
      )}
    </div>
  );
}

interface Repository {
  root: string;
  branch: string | null;
  additions: number;
  deletions: number;
  changed_files: number;
  refreshed_at: string;
}

function Repositories({ chatId }: { chatId: string }) {
  const isThere = useFeature("workspaces");
  const { data } = useQuery({
    queryKey: ["diff", chatId],
    queryFn: () => get<{ items: Repository[] }>(`/chats/${chatId}/diff`),
    enabled: isThere,
    retry: false,
  });
  if (!data || data.items.length === 0) return null;
  return (
    <ul className="border-b border-line px-4 py-3">
      {data.items.map((one) => (
        <li key={one.root} className="flex items-center gap-2">
          <GitBranch className="size-4 shrink-0 text-muted" aria-hidden />
          <span className="min-w-0 flex-1 truncate" title={one.root}>
            {one.root.split("/").at(-1)} {one.branch && <span className="text-muted">{one.branch}</span>}
          </span>
          <Counts added={one.additions} removed={one.deletions} />
          <Ago at={one.refreshed_at} className="text-small text-muted" />
        </li>
      ))}
    </ul>
  );
}

function Counts({ added, removed }: { added: number; removed: number }) {
  return (
    <span className="shrink-0 text-small tabular-nums">
      <span className="text-ok">+{added}</span> <span className="text-danger">-{removed}</span>
    </span>
  );
}

function Lines({ files }: { files: ChangedFile[] }) {
  const [toggled, setToggled] = useState<ReadonlySet<string>>(new Set());
  const box = useRef<HTMLDivElement>(null);
  const lines = useMemo(() => changeLines(files, toggled), [files, toggled]);
  const list = useVirtualizer({
    count: lines.length,
    getScrollElement: () => box.current,
    estimateSize: (index) => (lines[index]?.kind === "file" ? FILE_PX : LINE_PX),
    overscan: 20,
  });
  const toggle = (path: string) =>
    setToggled((old) => {
      const next = new Set(old);
      if (!next.delete(path)) next.add(path);
      return next;
    });
  return (
    <section ref={box} aria-label="Edits of this chat" tabIndex={0} className="min-h-0 flex-1 overflow-auto">
      <div className="relative min-w-fit" style={{ height: list.getTotalSize() }}>
        {list.getVirtualItems().map((item) => {
          const line = lines[item.index];
          if (!line) return null;
          return (
            <div key={item.key} className="absolute inset-x-0" style={{ top: item.start, height: item.size }}>
              <LineView line={line} onToggle={toggle} />
            </div>
          );
        })}
      </div>
    </section>
  );
}

function LineView({ line, onToggle }: { line: ChangeLine; onToggle: (path: string) => void }) {
  if (line.kind === "file") return <FileHead file={line.file} isOpen={line.isOpen} onToggle={onToggle} />;
  if (line.kind === "head") {
    return <div className="h-5 bg-bg3 px-3 font-mono text-small leading-5 text-muted">{line.text}</div>;
  }
  return (
    <div
      className={cx(
        "flex h-5 font-mono text-code leading-5 whitespace-pre",
        line.kind === "added" && "bg-added",
        line.kind === "removed" && "bg-removed",
      )}
    >
      <span className="w-10 shrink-0 pr-2 text-right text-muted select-none">{line.before}</span>
      <span className="w-10 shrink-0 pr-2 text-right text-muted select-none">{line.after}</span>
      <span className="w-4 shrink-0 select-none">{SIGNS[line.kind]}</span>
      <span className="pr-4">{line.text}</span>
    </div>
  );
}

function FileHead({
  file,
  isOpen,
  onToggle,
}: {
  file: ChangedFile;
  isOpen: boolean;
  onToggle: (path: string) => void;
}) {
  const Icon = isOpen ? ChevronDown : ChevronRight;
  return (
    <div className="flex h-9 items-center gap-1 border-y border-line bg-bg2 px-2">
      <button
        type="button"
        aria-expanded={isOpen}
        onClick={() => onToggle(file.path)}
        className="flex min-w-0 flex-1 items-center gap-1.5 rounded-md text-left"
      >
        <Icon className="size-4 shrink-0 text-muted" aria-hidden />
        <span className="min-w-0 truncate font-mono text-code">{file.path}</span>
        <Counts added={file.added} removed={file.removed} />
      </button>
      <IconButton
        label={`Copy path ${file.path}`}
        size="small"
        onClick={async () => {
          await navigator.clipboard.writeText(file.path);
          toast("The path is on the clipboard.", { kind: "ok" });
        }}
      >
        <Copy />
      </IconButton>
    </div>
  );
}
