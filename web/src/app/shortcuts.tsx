import { useEffect } from "react";
import { useNavigate, useParams } from "react-router";
import { useStore } from "zustand";
import { NO_FILTER, sectionsOf } from "@/chat/sidebar_list";
import { useAppearance } from "@/state/appearance";
import { useChatList } from "@/state/chat_list";
import { layout, setLayout } from "@/state/diff_layout";
import { Dialog } from "@/ui/dialog";
import { isMac, isTyping, modKey } from "@/ui/modifier_key";

const HELP: [string, string][] = [
  [`${modKey}-K`, "Search and commands"],
  [`${modKey}-Shift-O`, "New chat"],
  [`${modKey}-B`, "Show or hide the list"],
  [`${modKey}-J`, "Show or hide the panel"],
  [`${modKey}-F`, "Find in this chat; twice: the browser's own"],
  ["Alt-Up, Alt-Down", "Previous or next chat"],
  ["/", "Write a message"],
  ["e", "Edit the last prompt"],
  ["[ and ]", "Previous or next prompt"],
  [`${modKey}-Enter`, "Steer the working agent; with Shift: stop it and send"],
  ["Alt-M", "Switch the mode: Ask, Auto, Read only"],
  ["Esc Esc", "Stop the agent"],
  ["?", "This list"],
];

/** The keyboard shortcuts of the application, and the dialog that lists them. */
export function Shortcuts() {
  const navigate = useNavigate();
  const { id } = useParams();
  const { chats } = useChatList(NO_FILTER);
  const isOn = useAppearance((state) => state.shortcuts);
  const isHelp = useStore(layout, (state) => state.helpOpen);

  useEffect(() => {
    function step(by: number) {
      const order = sectionsOf(chats, NO_FILTER, new Date()).flatMap((section) => section.chats);
      const next = order[order.findIndex((one) => one.id === id) + by];
      if (next) void navigate(`/c/${next.id}${location.search}`);
    }

    function onKeyDown(event: KeyboardEvent) {
      if (event.defaultPrevented || event.isComposing || !isOn) return;
      const mod = isMac ? event.metaKey : event.ctrlKey;
      const key = event.key.toLowerCase();
      const state = layout.getState();
      if (mod && !event.shiftKey && !event.altKey && key === "k") setLayout({ paletteOpen: !state.paletteOpen });
      else if (mod && event.shiftKey && key === "o") void navigate("/");
      else if (mod && !event.shiftKey && !event.altKey && key === "b") setLayout({ sidebarOpen: !state.sidebarOpen });
      else if (event.altKey && !mod && event.key === "ArrowUp") step(-1);
      else if (event.altKey && !mod && event.key === "ArrowDown") step(1);
      else if (mod || event.altKey || isTyping(event.target)) return;
      else if (event.key === "?") setLayout({ helpOpen: true });
      else if (event.key === "/") document.querySelector<HTMLElement>("[data-composer]")?.focus();
      else return;
      event.preventDefault();
    }

    window.addEventListener("keydown", onKeyDown);
    return () => window.removeEventListener("keydown", onKeyDown);
  }, [chats, id, isOn, navigate]);

  return (
    <Dialog open={isHelp} onOpenChange={(open) => setLayout({ helpOpen: open })} title="Keyboard shortcuts">
      <dl className="grid grid-cols-[auto_1fr] gap-x-6 gap-y-2">
        {HELP.map(([keys, text]) => (
          <div key={keys} className="contents">
            <dt>
              <kbd className="rounded-md border border-line bg-bg2 px-1.5 py-0.5 font-sans text-small">{keys}</kbd>
            </dt>
            <dd>{text}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
