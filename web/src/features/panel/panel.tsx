import { X } from "lucide-react";
import { Tabs } from "radix-ui";
import type { CSSProperties } from "react";
import { useStore } from "zustand";
import type { ChatView } from "@/api/types.gen";
import { ChangesTab } from "@/features/panel/changes_tab";
import { FilesTab } from "@/features/panel/files_tab";
import { InfoTab } from "@/features/panel/info_tab";
import { layout, setLayout } from "@/state/layout";
import { useFeature } from "@/state/session";
import { IconButton } from "@/ui/button";
import { Resizer } from "@/ui/resizer";

interface Props {
  chat: ChatView;
  tab: string;
  onTab: (tab: string) => void;
  /** The file that is shown under Files, and the line that is meant. */
  file: string | null;
  line: number | null;
  onFile: (path: string | null) => void;
  onClose: () => void;
}

const TABS = [
  { id: "changes", label: "Changes" },
  { id: "files", label: "Files" },
  { id: "info", label: "Info" },
];

/** What belongs to a chat beside its conversation. Below 1024 px it lies over it. */
export function Panel({ chat, tab, onTab, file, line, onFile, onClose }: Props) {
  const width = useStore(layout, (state) => state.panelWidth);
  const hasWorkspaces = useFeature("workspaces");
  const tabs = TABS.filter((one) => one.id !== "files" || (hasWorkspaces && chat.my_role === "owner"));
  const current = tabs.some((one) => one.id === tab) ? tab : "info";
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
        <Tabs.Root value={current} onValueChange={onTab} className="flex min-h-0 flex-1 flex-col">
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
            <IconButton label="Close the panel" onClick={onClose}>
              <X />
            </IconButton>
          </div>
          <Tabs.Content value="changes" className="flex min-h-0 flex-1 flex-col data-[state=inactive]:hidden">
            <ChangesTab chat={chat} />
          </Tabs.Content>
          <Tabs.Content value="files" className="flex min-h-0 flex-1 flex-col data-[state=inactive]:hidden">
            <FilesTab chat={chat} file={file} line={line} onFile={onFile} />
          </Tabs.Content>
          <Tabs.Content value="info" className="min-h-0 flex-1 overflow-y-auto p-4 data-[state=inactive]:hidden">
            <InfoTab chat={chat} />
          </Tabs.Content>
        </Tabs.Root>
      </aside>
    </>
  );
}
