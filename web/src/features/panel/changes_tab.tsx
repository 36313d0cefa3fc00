import { Files, Pilcrow, RefreshCw, SquareSplitHorizontal, WrapText } from "lucide-react";
import { type ReactNode, useCallback, useMemo, useRef, useState } from "react";
import { useStore } from "zustand";
import type { ChatView } from "@/api/types.gen";
import { signature } from "@/chat/diff_rows";
import { changedFiles, lastTurn } from "@/chat/edited_files";
import { FileList } from "@/features/panel/changed_file_tree";
import { useKeptRemark } from "@/features/panel/comment_draft";
import { Counts } from "@/features/panel/diff_line";
import { DiffView } from "@/features/panel/diff_view";
import { StoredSummary, useWorkingTree, WorkingTreeState } from "@/features/panel/working_tree";
import { type DiffFile, ignoringSpace } from "@/lib/diff";
import { chatSession } from "@/state/chat_sessions";
import { composerPorts } from "@/state/composer_port";
import { type DiffLook, layout, setLayout } from "@/state/diff_layout";
import { useFeature } from "@/state/login_session";
import { Button, IconButton } from "@/ui/button";
import { cx } from "@/ui/cx";

type Source = "tree" | "turn" | "chat";
const NAMES: Record<Source, string> = { tree: "Working tree", turn: "This turn", chat: "This chat" };

// The selected source of each chat, until the page is closed.
const chosen = new Map<string, Source>();

/** The tab with the changes of a chat: in its repositories, and by its edit tools. */
export function ChangesTab({ chat }: { chat: ChatView }) {
  const hasWorkspaces = useFeature("workspaces");
  const [own, setOwn] = useState(chosen.get(chat.id));
  // The feature list of the server may arrive after the first render.
  const source = own ?? (hasWorkspaces ? "tree" : "chat");
  const choose = (next: Source) => {
    chosen.set(chat.id, next);
    setOwn(next);
  };
  const picker = (
    <select
      aria-label="What is compared"
      value={source}
      onChange={(event) => choose(event.target.value as Source)}
      className="h-7 rounded-md border border-line bg-bg1 px-1.5 font-medium pointer-coarse:h-11"
    >
      {(Object.keys(NAMES) as Source[])
        .filter((one) => one !== "tree" || hasWorkspaces)
        .map((one) => (
          <option key={one} value={one}>
            {NAMES[one]}
          </option>
        ))}
    </select>
  );
  if (source !== "tree") return <Edits key={source} chat={chat} isTurn={source === "turn"} picker={picker} />;
  return chat.my_role === "owner" ? (
    <WorkingTree chat={chat} picker={picker} />
  ) : (
    <div className="flex min-h-0 flex-1 flex-col">
      <Bar picker={picker} files={[]} />
      <StoredSummary chat={chat} />
    </div>
  );
}

function WorkingTree({ chat, picker }: { chat: ChatView; picker: ReactNode }) {
  const tree = useWorkingTree(chat);
  return (
    <Changes
      chat={chat}
      label="Changes of the working tree"
      files={tree.files}
      picker={picker}
      onRefresh={tree.canRefresh ? tree.refresh : null}
      notes={<WorkingTreeState chat={chat} tree={tree} />}
      empty={null}
    />
  );
}

function Edits({ chat, isTurn, picker }: { chat: ChatView; isTurn: boolean; picker: ReactNode }) {
  const session = chatSession(chat.id);
  const messages = useStore(session.store, (state) => state.data.messages);
  const hasMore = useStore(session.store, (state) => state.data.hasMore);
  const files = useMemo(() => {
    const all = [...messages.values()].sort((a, b) => a.id - b.id);
    return changedFiles(isTurn ? lastTurn(all) : all);
  }, [messages, isTurn]);
  const loaded = hasMore && !isTurn ? " as far as it is loaded" : "";
  return (
    <Changes
      chat={chat}
      label={isTurn ? "Edits of this turn" : "Edits of this chat"}
      files={files}
      picker={picker}
      onRefresh={null}
      notes={
        files.length > 0 && (
          <p className="border-b border-line px-3 py-1.5 text-small text-muted">
            Edits only, not what commands changed{loaded}.
          </p>
        )
      }
      empty={`No file was edited in this ${isTurn ? "turn" : "chat"}${loaded}. Changes made by commands are not shown here.`}
    />
  );
}

interface ChangesProps {
  chat: ChatView;
  label: string;
  files: DiffFile[];
  picker: ReactNode;
  onRefresh: (() => void) | null;
  notes: ReactNode;
  empty: string | null;
}

function Changes({ chat, label, files, picker, onRefresh, notes, empty }: ChangesProps) {
  const look = useStore(layout, (state) => state.diff);
  const port = useStore(composerPorts, (state) => state.ports.get(chat.id) ?? null);
  const shown = useMemo(() => (look.ignoresSpace ? files.map(ignoringSpace) : files), [files, look.ignoresSpace]);
  const remark = useKeptRemark(chat.id);
  const goTo = useRef<((file: DiffFile) => void) | null>(null);
  const [viewed, setViewed] = useState<ReadonlyMap<string, string>>(new Map());
  const isViewed = useCallback((file: DiffFile) => viewed.get(file.key) === signature(file), [viewed]);
  const onViewed = (file: DiffFile) =>
    setViewed((old) => {
      const next = new Map(old);
      if (next.get(file.key) === signature(file)) next.delete(file.key);
      else next.set(file.key, signature(file));
      return next;
    });
  return (
    <div className="flex min-h-0 flex-1 flex-col">
      <Bar picker={picker} files={files} onRefresh={onRefresh} />
      {notes}
      {shown.length > 0 ? (
        <>
          {look.hasList && <FileList files={shown} viewed={isViewed} onOpen={(file) => goTo.current?.(file)} />}
          <DiffView
            label={label}
            files={shown}
            split={look.split}
            wraps={look.wraps}
            viewed={isViewed}
            onViewed={onViewed}
            onComment={port ? port.refer : null}
            remark={remark}
            goTo={goTo}
          />
          {port && (
            <div className="flex items-center gap-2 border-t border-line px-3 py-2">
              <span className="min-w-0 flex-1 text-small text-muted max-md:invisible pointer-coarse:invisible">
                Drag over line numbers to comment. <kbd className="font-sans">n</kbd> and{" "}
                <kbd className="font-sans">p</kbd> go between changes.
              </span>
              <Button size="small" onClick={() => port.insert("Commit the changes with a message that says why.")}>
                Commit
              </Button>
            </div>
          )}
        </>
      ) : (
        empty && <p className="m-auto max-w-64 p-6 text-center text-muted">{empty}</p>
      )}
    </div>
  );
}

interface BarProps {
  picker: ReactNode;
  files: readonly DiffFile[];
  onRefresh?: (() => void) | null;
}

/** The toolbar: the source, the counts, and the display options. */
function Bar({ picker, files, onRefresh }: BarProps) {
  const look = useStore(layout, (state) => state.diff);
  const set = (change: Partial<DiffLook>) => setLayout({ diff: { ...look, ...change } });
  const added = files.reduce((sum, file) => sum + file.added, 0);
  const removed = files.reduce((sum, file) => sum + file.removed, 0);
  return (
    <div className="flex min-h-10 shrink-0 flex-wrap items-center gap-1 border-b border-line px-2 py-1">
      {picker}
      <span className="min-w-0 flex-1 truncate pl-1 max-sm:invisible max-sm:w-0">
        {files.length > 0 && <Counts added={added} removed={removed} />}
      </span>
      {onRefresh && (
        <IconButton label="Look again" onClick={onRefresh}>
          <RefreshCw />
        </IconButton>
      )}
      {files.length > 0 && (
        <>
          <Toggle label="List of files" isOn={look.hasList} onChange={(hasList) => set({ hasList })}>
            <Files />
          </Toggle>
          <Toggle label="Old and new side by side" isOn={look.split} onChange={(split) => set({ split })}>
            <SquareSplitHorizontal />
          </Toggle>
          <Toggle label="Wrap lines" isOn={look.wraps} onChange={(wraps) => set({ wraps })}>
            <WrapText />
          </Toggle>
          <Toggle
            label="Ignore whitespace changes"
            isOn={look.ignoresSpace}
            onChange={(on) => set({ ignoresSpace: on })}
          >
            <Pilcrow />
          </Toggle>
        </>
      )}
    </div>
  );
}

interface ToggleProps {
  label: string;
  isOn: boolean;
  onChange: (isOn: boolean) => void;
  children: ReactNode;
}

function Toggle({ label, isOn, onChange, children }: ToggleProps) {
  return (
    <IconButton
      label={label}
      aria-pressed={isOn}
      className={cx(isOn && "bg-bg3! text-text!")}
      onClick={() => onChange(!isOn)}
    >
      {children}
    </IconButton>
  );
}
