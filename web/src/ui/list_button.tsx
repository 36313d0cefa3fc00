import { Menu as MenuIcon, PanelLeftOpen } from "lucide-react";
import { useLocation, useNavigate } from "react-router";
import { useStore } from "zustand";
import { layout, setLayout } from "@/state/diff_layout";
import { IconButton } from "@/ui/button";
import { modKey } from "./modifier_key";

/** The button that opens the chat list when it is hidden. */
export function ListButton() {
  const isOpen = useStore(layout, (state) => state.sidebarOpen);
  const navigate = useNavigate();
  const { pathname, search } = useLocation();
  return (
    <>
      <IconButton
        label="Chats"
        className="md:hidden"
        onClick={() => void navigate(pathname + search, { state: { list: true } })}
      >
        <MenuIcon />
      </IconButton>
      {!isOpen && (
        <IconButton
          label="Show the list"
          keys={`${modKey}-B`}
          className="max-md:hidden"
          onClick={() => setLayout({ sidebarOpen: true })}
        >
          <PanelLeftOpen />
        </IconButton>
      )}
    </>
  );
}
