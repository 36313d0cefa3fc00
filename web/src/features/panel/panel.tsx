import { X } from "lucide-react";
import { Tabs } from "radix-ui";
import { type CSSProperties, Suspense } from "react";
import { useStore } from "zustand";
import type { ChatView } from "@/api/types.gen";
import { AgentsTab } from "@/features/panel/agents_tab";
import { ChangesTab } from "@/features/panel/changes_tab";
import { FilesTab } from "@/features/panel/files_tab";
import { InfoTab } from "@/features/panel/info_tab";
import { layout, setLayout } from "@/state/diff_layout";
import { useFeature } from "@/state/login_session";
import { useHasDebug } from "@/state/recorded_turns";
import { useAgents } from "@/state/subagents";
import { IconButton } from "@/ui/button";
import { lazyPart } from "@/ui/lazy_part";
import { Resizer } from "@/ui/resizer";

interface Props {
  chat: ChatView;
  tab: string;
  onTab: (tab: string) => void;
  /** The open file of the Files tab, and the line to scroll to. */
  file: string | null;
  line: number | null;
  onFile: (path: string | null) => void;
  onClose: () => void;
}

// Loaded with the first look at it, because few users debug.
const DebugTab = lazyPart(async () => (await import("@/features/debug/debug_tab")).DebugTab);

const TABS = [
  { id: "changes", label: "Changes" },
  { id: "files", label: "Files" },
  { id: "agents", label: "Agents" },
  { id: "debug", label: "Debug" },
  { id: "info", label: "Info" },
];

// The last place in the Debug tab for each chat, until the page is closed.
const places = new Map<string, string>();

/** Return whether the panel covers the conversation. */
const isOverlay = () => window.innerWidth < 1024;

/** The panel next to the conversation. On screens narrower than 1024 px it covers the conversation. */
export function Panel({ chat, tab, onTab, file, line, onFile, onClose }: Props) {
  const width = useStore(layout, (state) => state.panelWidth);
  const hasWorkspaces = useFeature("workspaces");
  const { data } = useAgents(chat.id);
  const agents = data?.agents ?? [];
  const isShown: Record<string, boolean> = {
    files: hasWorkspaces && chat.my_role === "owner",
    agents: agents.length > 0,
    debug: useHasDebug(chat),
  };
  const tabs = TABS.filter((one) => isShown[one.id] ?? true);
  // A tab may have a place after a colon, such as a run.
  const [wanted = ""] = tab.split(":");
  if (wanted === "debug") places.set(chat.id, tab);
  const current = tabs.some((one) => one.id === wanted) ? wanted : "info";
  return (
    <>
      <Resizer
        label="Width of the panel"
        value={width}
        min={360}
        max={Math.round(window.innerWidth * 0.7)}
        initial={480}
        reversed
        onChange={(next) => setLayout({ panelWidth: next })}
        className="hidden lg:block"
      />
      <aside
        aria-label="Panel"
        style={{ "--panel": `${width}px` } as CSSProperties}
        className="absolute inset-0 z-20 flex flex-col border-l border-line bg-bg1 lg:static lg:w-(--panel) lg:max-w-[calc(100%-420px)] lg:shrink-0"
      >
        <Tabs.Root
          value={current}
          onValueChange={(next) => onTab(next === "debug" ? (places.get(chat.id) ?? next) : next)}
          className="flex min-h-0 flex-1 flex-col"
        >
          <div className="flex h-12 shrink-0 items-center border-b border-line px-2">
            <Tabs.List aria-label="Panel" className="flex min-w-0 flex-1 gap-1">
              {tabs.map((one) => (
                <Tabs.Trigger
                  key={one.id}
                  value={one.id}
                  className="rounded-md px-2.5 py-1 font-medium text-muted hover:text-text data-[state=active]:bg-bg3 data-[state=active]:text-text"
                >
                  {one.label}
                </Tabs.Trigger>
              ))}
            </Tabs.List>
            {/* Below the button are those of the tab, and the pointer is here when the panel has opened. */}
            <IconButton label="Close the panel" data-side="left" onClick={onClose}>
              <X />
            </IconButton>
          </div>
          <Tabs.Content value="changes" className="flex min-h-0 flex-1 flex-col data-[state=inactive]:hidden">
            <ChangesTab chat={chat} />
          </Tabs.Content>
          <Tabs.Content value="files" className="flex min-h-0 flex-1 flex-col data-[state=inactive]:hidden">
            <FilesTab chat={chat} file={file} line={line} onFile={onFile} />
          </Tabs.Content>
          <Tabs.Content value="agents" className="min-h-0 flex-1 overflow-y-auto p-4 data-[state=inactive]:hidden">
            <AgentsTab chat={chat} agents={agents} onAnswer={() => isOverlay() && onClose()} />
          </Tabs.Content>
          <Tabs.Content value="debug" className="flex min-h-0 flex-1 flex-col data-[state=inactive]:hidden">
            <Suspense>
              <DebugTab chat={chat} />
            </Suspense>
          </Tabs.Content>
          <Tabs.Content value="info" className="min-h-0 flex-1 overflow-y-auto p-4 data-[state=inactive]:hidden">
            <InfoTab chat={chat} />
          </Tabs.Content>
        </Tabs.Root>
      </aside>
    </>
  );
}
