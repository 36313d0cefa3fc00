import { PanelLeftClose, Search, SquarePen, X } from "lucide-react";
import { Link, useLocation, useNavigate, useSearchParams } from "react-router";
import { filterSearch } from "@/chat/sidebar_list";
import { ChatSections } from "@/features/sidebar/chat_sections";
import { FilterMenu } from "@/features/sidebar/filter_menu";
import { UserMenu } from "@/features/sidebar/user_menu";
import { setLayout } from "@/state/diff_layout";
import { IconButton } from "@/ui/button";
import { Logo } from "@/ui/logo";
import { modKey } from "@/ui/modifier_key";
import { Tooltip } from "@/ui/tooltip";
import { ChatDialogs } from "./chat_dialogs";

/** The sidebar: the chat list, search, and the user menu. */
export function Sidebar() {
  const { search } = useLocation();
  const navigate = useNavigate();
  const [params] = useSearchParams();
  const kept = filterSearch(params);
  return (
    <>
      <div className="flex items-center gap-1 px-3 pt-3 pb-2">
        <Link to={`/${kept}`} className="flex min-w-0 flex-1 items-center gap-2 rounded-md text-[15px] font-semibold">
          <Logo className="size-6" /> Rookery
        </Link>
        <IconButton
          label="Hide the list"
          keys={`${modKey}-B`}
          className="max-md:hidden"
          onClick={() => setLayout({ sidebarOpen: false })}
        >
          <PanelLeftClose />
        </IconButton>
        <Tooltip text="New chat" keys={`${modKey}-Shift-O`}>
          <Link
            to={`/${kept}`}
            aria-label="New chat"
            className="inline-flex size-8 items-center justify-center rounded-md text-muted hover:bg-bg3 hover:text-text pointer-coarse:size-11 [&_svg]:size-4"
          >
            <SquarePen />
          </Link>
        </Tooltip>
        {/* On a small screen the list is a history entry that covers the page. */}
        <IconButton label="Close the list" className="md:hidden" onClick={() => void navigate(-1)}>
          <X />
        </IconButton>
      </div>
      <div className="flex items-center gap-1 px-3 pb-2">
        <button
          type="button"
          onClick={() => setLayout({ paletteOpen: true })}
          className="flex h-8 min-w-0 flex-1 items-center gap-2 rounded-lg border border-line bg-bg1 px-2.5 text-muted hover:border-control pointer-coarse:h-11"
        >
          <Search className="size-4 shrink-0" aria-hidden />
          <span className="min-w-0 flex-1 truncate text-left">Search</span>
          <kbd className="font-sans text-small max-md:hidden pointer-coarse:hidden">{modKey}-K</kbd>
        </button>
        <FilterMenu key={search} />
      </div>
      <ChatSections />
      <UserMenu />
      <ChatDialogs />
    </>
  );
}
