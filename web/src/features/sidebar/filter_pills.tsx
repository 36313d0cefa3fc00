import { X } from "lucide-react";
import type { ChatFolder } from "@/api/types.gen";
import type { Filter } from "@/chat/sidebar_list";
import { useFolders } from "@/state/folders";
import { IconButton } from "@/ui/button";

/** Return a text for each active filter, with the change that removes it. */
function filterPills(filter: Filter, folders: ChatFolder[] | undefined): [string, Partial<Filter>][] {
  const pills: [string, Partial<Filter>][] = [];
  if (filter.source !== "all") pills.push([filter.source === "mine" ? "Mine" : "Shared with me", { source: "all" }]);
  const folder = folders?.find((one) => one.id === filter.folder)?.name;
  if (filter.folder) pills.push([folder ? `Folder: ${folder}` : "Folder", { folder: "" }]);
  if (filter.unread) pills.push(["Unread", { unread: false }]);
  if (filter.archived) pills.push(["Archived", { archived: false }]);
  for (const label of filter.labels) pills.push([label, { labels: filter.labels.filter((one) => one !== label) }]);
  return pills;
}

/** The active filters of the list. Each has a button that removes it. */
export function FilterPills({ filter, onChange }: { filter: Filter; onChange: (change: Partial<Filter>) => void }) {
  const folders = useFolders();
  return (
    <ul aria-label="Active filters" className="flex flex-wrap gap-1 px-1 pb-2">
      {filterPills(filter, folders).map(([text, without]) => (
        <li key={text} className="flex items-center gap-0.5 rounded-md bg-bg3 pl-2 text-small">
          {text}
          <IconButton label={`Remove filter ${text}`} size="small" onClick={() => onChange(without)}>
            <X />
          </IconButton>
        </li>
      ))}
    </ul>
  );
}
