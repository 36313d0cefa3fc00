import { Menu as MenuIcon, PanelLeftOpen } from "lucide-react";
import { useLocation, useNavigate } from "react-router";
import { useStore } from "zustand";
import { layout, setLayout } from "@/state/layout";
import { IconButton } from "@/ui/button";
import { modKey } from "@/ui/keys";

/** Brings the list of chats back where it is not in view: as a pane of its own on small screens, else where it was. */
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
