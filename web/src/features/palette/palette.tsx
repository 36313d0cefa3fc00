import { keepPreviousData, useQuery } from "@tanstack/react-query";
import {
  Archive,
  ChartNoAxesColumn,
  ListFilter,
  Moon,
  PanelLeft,
  Search,
  Settings,
  SquarePen,
  Sun,
} from "lucide-react";
import { Dialog } from "radix-ui";
import { useState } from "react";
import { useNavigate } from "react-router";
import { useStore } from "zustand";
import { listChats } from "@/api/chats";
import { ApiError, sentence } from "@/api/errors";
import type { ChatView } from "@/api/types.gen";
import {
  completions,
  everywhere,
  type Pill,
  pillText,
  queryOf,
  refusedPill,
  takePills,
  withPills,
  wordsOf,
} from "@/chat/search_pills";
import { markOf, NO_FILTER } from "@/chat/sidebar_list";
import { MarkedWords } from "@/features/palette/marked_words";
import { Pills } from "@/features/palette/pills";
import { ChatMark } from "@/features/sidebar/chat_mark";
import { saveDisplay } from "@/state/appearance";
import { useChatList } from "@/state/chat_list";
import { layout, setLayout } from "@/state/diff_layout";
import { Combobox, matching, type Option } from "@/ui/combobox";
import { useDebounced } from "@/ui/debounced";

const WAIT_MS = 200;
const MIN_CHARACTERS = 2;

interface Command extends Option {
  run: () => void;
}

// The element that had the focus. Stored here, because the field of the dialog takes the focus before an effect runs.
let opener: Element | null = document.activeElement;
let hasLeft = false;
layout.subscribe((now, before) => {
  if (!now.paletteOpen || before.paletteOpen) return;
  opener = document.activeElement;
  hasLeft = false;
});

/** The command palette: recent chats and commands, and search results from the server. */
export function Palette() {
  const isOpen = useStore(layout, (state) => state.paletteOpen);
  return (
    <Dialog.Root open={isOpen} onOpenChange={(open) => setLayout({ paletteOpen: open })}>
      <Dialog.Portal>
        <Dialog.Overlay className="fixed inset-0 z-40 bg-black/45" />
        <Dialog.Content
          aria-describedby={undefined}
          onCloseAutoFocus={(event) => {
            event.preventDefault();
            // After navigation, the new page sets the focus.
            if (!hasLeft && opener instanceof HTMLElement) opener.focus();
          }}
          className="pop-in fixed inset-x-2 top-2 z-40 flex max-h-[70dvh] flex-col overflow-hidden rounded-xl border border-line bg-bg1 shadow-pop outline-none sm:inset-x-auto sm:top-[12vh] sm:left-1/2 sm:w-[min(40rem,calc(100vw-2rem))] sm:-translate-x-1/2"
        >
          <Dialog.Title className="sr-only">Search and commands</Dialog.Title>
          <PaletteBody />
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}

function PaletteBody() {
  const navigate = useNavigate();
  const [typed, setTyped] = useState("");
  const [pills, setPills] = useState<Pill[]>([]);
  const last = takePills(typed, true);
  const wanted = useDebounced(queryOf(withPills(pills, last.pills), last.rest), WAIT_MS);
  const { chats } = useChatList(NO_FILTER);
  const hasFilter = pills.length + last.pills.length > 0;
  const isLong = wanted.length >= MIN_CHARACTERS;
  const found = useQuery({
    queryKey: ["search", wanted],
    queryFn: ({ signal }) => listChats({ q: everywhere(wanted), limit: 20 }, signal),
    enabled: isLong,
    placeholderData: keepPreviousData,
    retry: false,
  });
  const refusal = found.error instanceof ApiError ? (found.error.field("q") ?? "") : "";
  const recent = chats.slice(0, 8).map((chat) => chatOption(chat, "Recent"));
  const hits =
    isLong && (hasFilter || typed.trim().length >= MIN_CHARACTERS)
      ? (found.data?.items ?? []).map((chat) => chatOption(chat, "Found", wordsOf(last.rest)))
      : [];
  // A search result leads to a message, so its chat is not listed separately.
  const known = new Set(hits.map((one) => one.id.split("?", 1)[0]));
  const commands = useCommands(typed.trim());
  const filters = completions(typed);
  const options = [
    ...filters.map((one) => ({
      id: `filter ${one.text}`,
      label: one.label,
      group: "Filters",
      detail: one.help,
      icon: <ListFilter />,
    })),
    ...hits,
    // The server applies the filters.
    ...(hasFilter ? [] : matching(recent, typed).filter((one) => !known.has(one.id))),
    ...(hasFilter ? [] : (matching(commands, typed) as Command[])),
    ...(isLong ? [{ id: "all", label: `All results for “${wanted}”`, group: "Commands", icon: <Search /> }] : []),
  ];

  function type(text: string) {
    const { pills: more, rest } = takePills(text);
    if (more.length > 0) setPills(withPills(pills, more));
    setTyped(rest);
  }

  function pick(option: Option, { newTab }: { newTab: boolean }) {
    const filter = filters.find((one) => option.id === `filter ${one.text}`);
    if (filter) return type(filter.text);
    setLayout({ paletteOpen: false });
    const command = commands.find((one) => one.id === option.id);
    if (command) return command.run();
    hasLeft = !newTab;
    const path = option.id === "all" ? `/search?q=${encodeURIComponent(wanted)}` : option.id;
    if (newTab) window.open(path, "_blank", "noopener");
    else void navigate(path);
  }

  return (
    <Combobox
      label="Search and commands"
      placeholder="Search chats and messages, or type a command"
      query={typed}
      onQuery={type}
      before={
        <Pills
          pills={pills}
          wrong={refusedPill(pills, refusal)}
          onRemove={(pill) => setPills(pills.filter((one) => one !== pill))}
        />
      }
      onBack={() => {
        const pill = pills.at(-1);
        if (!pill) return;
        setPills(pills.slice(0, -1));
        setTyped(pillText(pill));
      }}
      options={options}
      onPick={pick}
      empty={found.error ? refusal || sentence(found.error) : found.isFetching ? "Searching" : "Nothing matches."}
      className="max-h-[70dvh]"
    />
  );
}

/** Return an option whose id is the URL of the chat, or of the message that was found. */
function chatOption(chat: ChatView, group: string, words: readonly string[] = []): Option {
  const { chat_id, message_id, snippet } = chat.match ?? {};
  const id = message_id ? `/c/${chat_id ?? chat.id}?m=${message_id}` : `/c/${chat.id}`;
  return {
    id,
    label: chat.title,
    group,
    icon: <ChatMark mark={markOf(chat)} />,
    ...(snippet
      ? {
          detail: (
            <span className="inline-block max-w-72 truncate align-bottom">
              <MarkedWords text={snippet} words={words} />
            </span>
          ),
        }
      : {}),
  };
}

function useCommands(query: string): Command[] {
  const navigate = useNavigate();
  const go = (path: string) => () => {
    hasLeft = true;
    void navigate(path);
  };
  const theme = (name: string) => () => void saveDisplay({ theme: name }).catch(() => {});
  const all: Command[] = [
    { id: "new", label: "New chat", icon: <SquarePen />, run: go("/") },
    { id: "settings", label: "Settings", icon: <Settings />, run: go("/settings/profile") },
    { id: "usage", label: "Your usage", icon: <ChartNoAxesColumn />, run: go("/usage") },
    { id: "archive", label: "Show the archive", icon: <Archive />, run: go("/?archived=1") },
    {
      id: "sidebar",
      label: "Show or hide the list",
      icon: <PanelLeft />,
      run: () => setLayout({ sidebarOpen: !layout.getState().sidebarOpen }),
    },
    { id: "dark", label: "Dark theme", icon: <Moon />, run: theme("dark") },
    { id: "light", label: "Light theme", icon: <Sun />, run: theme("light") },
  ].map((one) => ({ ...one, group: "Commands" }));
  // Without a query, only the most used commands are listed.
  return query ? all : all.slice(0, 4);
}
