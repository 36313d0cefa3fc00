import { ChevronDown, ChevronRight, Ellipsis } from "lucide-react";
import { type DragEvent, useState } from "react";
import { Link, useLocation, useParams } from "react-router";
import type { ChatView } from "@/api/types.gen";
import { filterSearch, isBusy, lineOf, markOf } from "@/chat/sidebar_list";
import { movePin } from "@/features/sidebar/actions";
import { chatMenu } from "@/features/sidebar/chat_menu";
import { ChatMark } from "@/features/sidebar/mark";
import { IconButton } from "@/ui/button";
import { cx } from "@/ui/cx";
import { Menu } from "@/ui/menu";
import { Ago } from "@/ui/time";

interface Props {
  chat: ChatView;
  pinned: ChatView[];
  isChild?: boolean;
}

// Which pinned chat is being dragged; the browser tells drop targets nothing about it before the drop.
let dragged: ChatView | null = null;

/** One chat of the list, with its subagents below it. */
export function ChatRow({ chat, pinned, isChild }: Props) {
  const { id } = useParams();
  const children = chat.children ?? [];
  const isChosen = children.some((one) => one.id === id);
  const isActive = children.some(isBusy);
  const [opened, setOpened] = useState<boolean | null>(null);
  const isOpen = opened ?? (isActive || isChosen);
  const items = chatMenu(chat, pinned);
  return (
    <li>
      <Menu
        context
        label={`Actions for ${chat.title}`}
        items={items}
        trigger={
          <div
            {...pinDrag(chat, pinned)}
            className={cx(
              "group relative flex items-start gap-1.5 rounded-lg px-2 py-1.5 in-data-[density=compact]:py-0.5 hover:bg-bg3 pointer-coarse:min-h-11",
              chat.id === id && "bg-bg3",
              isChild && "ml-4",
            )}
          >
            {children.length > 0 ? (
              <Disclosure chat={chat} isOpen={isOpen} onToggle={() => setOpened(!isOpen)} />
            ) : (
              <span className="mt-0.5">
                <ChatMark mark={markOf(chat)} />
              </span>
            )}
            <RowText chat={chat} isCurrent={chat.id === id} />
            <span className="absolute top-1 right-1 rounded-md bg-bg3 opacity-0 group-hover:opacity-100 focus-within:opacity-100 has-data-[state=open]:opacity-100 pointer-coarse:opacity-100">
              <Menu
                align="end"
                label={`Actions for ${chat.title}`}
                items={items}
                trigger={
                  <IconButton label={`Actions for ${chat.title}`} size="small">
                    <Ellipsis />
                  </IconButton>
                }
              />
            </span>
          </div>
        }
      />
      {isOpen && children.length > 0 && (
        <ul>
          {children.map((child) => (
            <ChatRow key={child.id} chat={child} pinned={[]} isChild />
          ))}
        </ul>
      )}
    </li>
  );
}

function Disclosure({ chat, isOpen, onToggle }: { chat: ChatView; isOpen: boolean; onToggle: () => void }) {
  const mark = markOf(chat);
  const Icon = isOpen ? ChevronDown : ChevronRight;
  return (
    <button
      type="button"
      aria-expanded={isOpen}
      aria-label={`Subagents of ${chat.title}`}
      onClick={onToggle}
      className="relative z-10 -mx-1 mt-px grid size-6 shrink-0 place-items-center rounded-md hover:bg-bg1"
    >
      {mark === "idle" ? (
        <Icon className="size-4 text-muted" />
      ) : (
        <>
          <span className="group-hover:hidden">
            <ChatMark mark={mark} />
          </span>
          <Icon className="hidden size-4 text-muted group-hover:block" />
        </>
      )}
    </button>
  );
}

function RowText({ chat, isCurrent }: { chat: ChatView; isCurrent: boolean }) {
  const { search } = useLocation();
  const line = lineOf(chat);
  const mark = markOf(chat);
  return (
    <Link
      to={`/c/${chat.id}${filterSearch(new URLSearchParams(search))}`}
      aria-current={isCurrent ? "page" : undefined}
      className="min-w-0 flex-1 rounded-sm after:absolute after:inset-0"
    >
      <span className="flex items-baseline gap-2">
        <span className={cx("min-w-0 flex-1 truncate", chat.has_unread && "font-semibold")}>
          {chat.title || "Untitled"}
        </span>
        {chat.has_unread && mark !== "unread" ? (
          <span role="img" aria-label="Unread" className="size-2 shrink-0 self-center rounded-full bg-accent" />
        ) : (
          <Ago
            at={chat.last_activity_at}
            className="shrink-0 text-small text-muted group-focus-within:opacity-0 group-hover:opacity-0 group-has-data-[state=open]:opacity-0 pointer-coarse:opacity-0"
          />
        )}
      </span>
      {line && (
        <span
          className={cx(
            "block truncate text-small in-data-[density=compact]:hidden",
            mark === "failed" ? "text-danger" : "text-muted",
          )}
        >
          {line}
        </span>
      )}
    </Link>
  );
}

/** Pinned chats take each other's place by dragging; the menu does the same by keys. */
function pinDrag(chat: ChatView, pinned: ChatView[]) {
  if (!chat.pin_order) return {};
  return {
    draggable: true,
    onDragStart: (event: DragEvent) => {
      dragged = chat;
      event.dataTransfer.effectAllowed = "move";
    },
    onDragOver: (event: DragEvent) => {
      if (dragged && dragged.id !== chat.id) event.preventDefault();
    },
    onDrop: (event: DragEvent) => {
      event.preventDefault();
      const to = pinned.findIndex((one) => one.id === chat.id) + 1;
      if (dragged && to > 0) void movePin(dragged, to, pinned);
      dragged = null;
    },
    onDragEnd: () => {
      dragged = null;
    },
  };
}
