import { ChevronDown, ChevronRight, Ellipsis } from "lucide-react";
import { type DragEvent, type MouseEvent, memo, Suspense, useState } from "react";
import { useNavigate } from "react-router";
import type { ChatView } from "@/api/types.gen";
import { isBusy, lineOf, type Mark, markOf } from "@/chat/sidebar_list";
import { ChangeBadge, hasChanges } from "@/features/sidebar/change_badge";
import { openRowMenu, openRowMenuAt, useHasRowMenu } from "@/features/sidebar/row_menu";
import { pinnedChats } from "@/state/chat_list";
import { IconButton } from "@/ui/button";
import { cx } from "@/ui/cx";
import { lazyPart } from "@/ui/lazy_part";
import { Ago } from "@/ui/relative_time";
import { movePin } from "./chat_actions";
import { ChatMark } from "./chat_mark";

const RowMarks = lazyPart(async () => (await import("@/features/sidebar/row_marks")).RowMarks);

interface Props {
  chat: ChatView;
  /** The open chat if it is this one or one of its subagents, else null, so that other rows do not render. */
  current: string | null;
  /** The URL parameters of the filter, which links keep. */
  search: string;
  isChild?: boolean;
}

/** Return the id of the open chat if it is this chat or one of its subagents. */
export function currentIn(chat: ChatView, id: string | undefined): string | null {
  return id !== undefined && (chat.id === id || (chat.children ?? []).some((one) => one.id === id)) ? id : null;
}

// The pinned chat that is being dragged. The browser does not expose the dragged data before the drop.
let dragged: ChatView | null = null;

/** A row of the chat list, with its subagents below it. */
export const ChatRow = memo(function ChatRow({ chat, current, search, isChild }: Props) {
  const children = chat.children ?? [];
  const isChosen = children.some((one) => one.id === current);
  const isActive = children.some((one) => isBusy(one) || one.status === "requires_action");
  const [opened, setOpened] = useState<boolean | null>(null);
  const isOpen = opened ?? (isActive || isChosen);
  const hasMenu = useHasRowMenu(chat.id);
  // The parent reads the answers of a subagent, so they are not news for the user.
  const isUnread = chat.has_unread && !isChild;
  const mark = markOf({ ...chat, has_unread: isUnread });
  return (
    <li>
      {/* biome-ignore lint/a11y/noStaticElementInteractions: a button opens the same menu for keyboard users */}
      <div
        {...chatDrag(chat)}
        onContextMenu={(event) => {
          event.preventDefault();
          const opener = event.currentTarget.querySelector("a");
          if (opener) openRowMenuAt(chat, opener, event.clientX, event.clientY);
        }}
        className={cx(
          "group relative flex items-start gap-1.5 rounded-lg px-2 py-1.5 in-data-[density=compact]:py-0.5 hover:bg-bg3 pointer-coarse:min-h-11",
          (chat.id === current || hasMenu) && "bg-bg3",
          isChild && "ml-7",
        )}
      >
        {children.length > 0 && <Disclosure chat={chat} isOpen={isOpen} onToggle={() => setOpened(!isOpen)} />}
        {(children.length === 0 || mark !== "idle") && (
          <span className="mt-0.5">
            <ChatMark mark={mark} />
          </span>
        )}
        <RowText
          chat={chat}
          mark={mark}
          isUnread={isUnread}
          isCurrent={chat.id === current}
          search={search}
          hasMenu={hasMenu}
        />
        <span
          className={cx(
            "absolute top-1 right-1 rounded-md bg-bg3 pointer-coarse:top-0 group-hover:opacity-100 focus-within:opacity-100 pointer-coarse:bg-transparent pointer-coarse:opacity-100",
            hasMenu ? "opacity-100" : "opacity-0",
          )}
        >
          <IconButton
            label={`Actions for ${chat.title}`}
            size="small"
            aria-haspopup="menu"
            aria-expanded={hasMenu}
            onClick={(event) => openRowMenu(chat, event.currentTarget, event.detail > 0)}
          >
            <Ellipsis />
          </IconButton>
        </span>
      </div>
      {isOpen && children.length > 0 && (
        <ul>
          {children.map((child) => (
            <ChatRow
              key={child.id}
              chat={child}
              current={currentIn(child, current ?? undefined)}
              search={search}
              isChild
            />
          ))}
        </ul>
      )}
    </li>
  );
});

function Disclosure({ chat, isOpen, onToggle }: { chat: ChatView; isOpen: boolean; onToggle: () => void }) {
  const Icon = isOpen ? ChevronDown : ChevronRight;
  return (
    <button
      type="button"
      aria-expanded={isOpen}
      aria-label={`Subagents of ${chat.title}`}
      onClick={onToggle}
      className="relative z-10 -mx-1 mt-px grid size-6 shrink-0 place-items-center rounded-md hover:bg-bg1 pointer-coarse:-my-2 pointer-coarse:h-11"
    >
      <Icon aria-hidden className="size-4 text-muted" />
    </button>
  );
}

interface TextProps {
  chat: ChatView;
  mark: Mark;
  isUnread: boolean;
  isCurrent: boolean;
  search: string;
  hasMenu: boolean;
}

function RowText({ chat, mark, isUnread, isCurrent, search, hasMenu }: TextProps) {
  const navigate = useNavigate();
  const line = lineOf(chat);
  const to = `/c/${chat.id}${search}`;
  // Not the router's link, which would render at every change of the URL.
  const go = (event: MouseEvent) => {
    if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    void navigate(to);
  };
  return (
    <a
      href={to}
      onClick={go}
      aria-current={isCurrent ? "page" : undefined}
      className="min-w-0 flex-1 rounded-sm after:absolute after:inset-0 pointer-coarse:pr-10"
    >
      <span className="flex items-baseline gap-2">
        <span className={cx("min-w-0 flex-1 truncate", isUnread && "font-semibold")}>{chat.title || "Untitled"}</span>
        {(chat.folder_id !== null || (chat.shared && chat.my_role === "owner")) && !chat.parent_chat_id && (
          <Suspense>
            <RowMarks chat={chat} />
          </Suspense>
        )}
        {isUnread && mark !== "unread" ? (
          <span role="img" aria-label="Unread" className="size-2 shrink-0 self-center rounded-full bg-accent" />
        ) : (
          <Ago
            at={chat.last_activity_at}
            className={cx(
              "shrink-0 text-small text-muted group-focus-within:opacity-0 group-hover:opacity-0 pointer-coarse:opacity-100",
              hasMenu && "opacity-0",
            )}
          />
        )}
      </span>
      {(line || hasChanges(chat)) && (
        <span className="flex gap-2 text-small in-data-[density=compact]:hidden">
          <span className={cx("min-w-0 flex-1 truncate", mark === "failed" ? "text-danger" : "text-muted")}>
            {line}
          </span>
          <ChangeBadge chat={chat} />
        </span>
      )}
    </a>
  );
}

/** The type of dragged data that holds the id of a chat. */
export const CHAT_DRAG = "application/x-rookery-chat";

/** Return the drag handlers to move chats into folders and to reorder pinned chats. Keyboard users have the menu. */
function chatDrag(chat: ChatView) {
  const canMove = chat.my_role === "owner" && !chat.parent_chat_id;
  if (!canMove && !chat.pin_order) return {};
  const drag = {
    draggable: true,
    onDragStart: (event: DragEvent) => {
      if (chat.pin_order) dragged = chat;
      if (canMove) event.dataTransfer.setData(CHAT_DRAG, chat.id);
      event.dataTransfer.effectAllowed = "move";
    },
  };
  if (!chat.pin_order) return drag;
  return {
    ...drag,
    onDragOver: (event: DragEvent) => {
      if (dragged && dragged.id !== chat.id) event.preventDefault();
    },
    onDrop: (event: DragEvent) => {
      event.preventDefault();
      const pinned = pinnedChats();
      const to = pinned.findIndex((one) => one.id === chat.id) + 1;
      if (dragged && to > 0) void movePin(dragged, to, pinned);
      dragged = null;
    },
    onDragEnd: () => {
      dragged = null;
    },
  };
}
