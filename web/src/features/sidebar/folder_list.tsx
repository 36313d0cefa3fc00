import { ChevronDown, ChevronRight, Ellipsis, Folder, FolderOpen, FolderPlus, Pencil, Trash2 } from "lucide-react";
import { type DragEvent, useEffect, useState } from "react";
import { useStore } from "zustand";
import { sentence } from "@/api/errors";
import type { ChatFolder } from "@/api/types.gen";
import type { Filter } from "@/chat/sidebar_list";
import { CHAT_DRAG } from "@/features/sidebar/chat_row";
import { FolderDialog } from "@/features/sidebar/folder_dialog";
import { moveChat } from "@/features/sidebar/move_dialog";
import { reloadLists } from "@/state/chat_list";
import { layout, setLayout } from "@/state/diff_layout";
import { deleteFolder, FOLDER_COLORS, followFolders, useFolders } from "@/state/folders";
import { IconButton } from "@/ui/button";
import { cx } from "@/ui/cx";
import { Confirm } from "@/ui/dialog";
import { MenuAt, placeOf } from "@/ui/menu";
import { toast } from "@/ui/toast";

const SECTION = "folders";

interface Props {
  filter: Filter;
  onChange: (change: Partial<Filter>) => void;
}

type Open = { kind: "menu"; folder: ChatFolder; opener: HTMLElement } | { kind: "edit" | "delete"; folder: ChatFolder };

/** The user's folders, above the list. A click shows the chats of a folder, and a dropped chat is moved into it. */
export function FolderList({ filter, onChange }: Props) {
  const folders = useFolders();
  const [open, setOpen] = useState<Open | "new" | null>(null);
  const closed = useStore(layout, (state) => state.closedSections);
  const isOpen = !closed.includes(SECTION);
  const Icon = isOpen ? ChevronDown : ChevronRight;
  const close = () => setOpen(null);
  useEffect(followFolders, []);
  if (!folders?.length) return null;

  async function remove(folder: ChatFolder) {
    try {
      await deleteFolder(folder.id);
      if (filter.folder === folder.id) onChange({ folder: "" });
      reloadLists();
    } catch (error) {
      toast(sentence(error), { kind: "error" });
    }
  }

  return (
    <section aria-label="Folders" className="mb-2">
      <div className="flex items-center gap-1">
        <button
          type="button"
          aria-expanded={isOpen}
          onClick={() =>
            setLayout({ closedSections: isOpen ? [...closed, SECTION] : closed.filter((one) => one !== SECTION) })
          }
          className="flex min-w-0 flex-1 items-center gap-1 rounded-md px-2 py-1 text-small font-medium text-muted hover:text-text"
        >
          <span className="flex-1 text-left">Folders</span>
          <Icon className="size-3.5" aria-hidden />
        </button>
        <IconButton label="New folder" size="small" onClick={() => setOpen("new")}>
          <FolderPlus />
        </IconButton>
      </div>
      {isOpen && (
        <ul>
          {folders.map((folder) => (
            <FolderRow
              key={folder.id}
              folder={folder}
              isOn={filter.folder === folder.id}
              onToggle={() => onChange({ folder: filter.folder === folder.id ? "" : folder.id })}
              onMenu={(opener) => setOpen({ kind: "menu", folder, opener })}
            />
          ))}
        </ul>
      )}
      {open === "new" && <FolderDialog folder={null} onClose={close} />}
      {open !== null && open !== "new" && open.kind === "menu" && (
        <MenuAt
          place={placeOf(open.opener)}
          opener={open.opener}
          label={`Actions for folder ${open.folder.name}`}
          onClose={() => setOpen((now) => (now === open ? null : now))}
          items={[
            {
              label: "Rename or color",
              icon: <Pencil />,
              onSelect: () => setTimeout(() => setOpen({ kind: "edit", folder: open.folder })),
            },
            {
              label: "Delete",
              icon: <Trash2 />,
              danger: true,
              onSelect: () => setTimeout(() => setOpen({ kind: "delete", folder: open.folder })),
            },
          ]}
        />
      )}
      {open !== null && open !== "new" && open.kind === "edit" && <FolderDialog folder={open.folder} onClose={close} />}
      {open !== null && open !== "new" && open.kind === "delete" && (
        <Confirm
          open
          danger
          onOpenChange={close}
          title={`Delete “${open.folder.name}”?`}
          text="Its chats are kept. They are no longer in a folder."
          action="Delete"
          onConfirm={() => void remove(open.folder)}
        />
      )}
    </section>
  );
}

interface RowProps {
  folder: ChatFolder;
  /** Whether the list shows only the chats of this folder. */
  isOn: boolean;
  onToggle: () => void;
  onMenu: (opener: HTMLElement) => void;
}

function FolderRow({ folder, isOn, onToggle, onMenu }: RowProps) {
  const [isOver, setOver] = useState(false);
  const Icon = isOn ? FolderOpen : Folder;
  const holdsChat = (event: DragEvent) => event.dataTransfer.types.includes(CHAT_DRAG);
  return (
    <li
      onDragOver={(event) => {
        if (!holdsChat(event)) return;
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        setOver(false);
        if (!holdsChat(event)) return;
        event.preventDefault();
        void moveChat(event.dataTransfer.getData(CHAT_DRAG), folder);
      }}
      className={cx(
        "group relative flex items-center rounded-lg hover:bg-bg3 pointer-coarse:min-h-11",
        (isOn || isOver) && "bg-bg3",
        isOver && "outline-2 -outline-offset-2 outline-accent",
      )}
    >
      <button
        type="button"
        aria-pressed={isOn}
        onClick={onToggle}
        className="flex min-w-0 flex-1 items-center gap-2 rounded-lg px-2 py-1 text-left pointer-coarse:py-2.5"
      >
        <Icon aria-hidden className={cx("size-4 shrink-0", FOLDER_COLORS[folder.color]?.[1])} />
        <bdi className="min-w-0 flex-1 truncate">{folder.name}</bdi>
        <span className="text-small text-muted tabular-nums group-focus-within:opacity-0 group-hover:opacity-0 pointer-coarse:mr-10 pointer-coarse:opacity-100">
          {folder.chats}
        </span>
      </button>
      <span className="absolute right-1 opacity-0 group-hover:opacity-100 focus-within:opacity-100 pointer-coarse:opacity-100">
        <IconButton
          label={`Actions for folder ${folder.name}`}
          size="small"
          aria-haspopup="menu"
          onClick={(event) => onMenu(event.currentTarget)}
        >
          <Ellipsis />
        </IconButton>
      </span>
    </li>
  );
}
