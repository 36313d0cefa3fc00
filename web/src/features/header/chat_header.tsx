import { Ellipsis, PanelRight, Share2 } from "lucide-react";
import { type ReactNode, Suspense } from "react";
import { Link } from "react-router";
import type { ChatView } from "@/api/types.gen";
import { ChangeBadge, hasChanges } from "@/features/sidebar/change_badge";
import { openChatDialog } from "@/features/sidebar/chat_dialogs";
import { chatMenu } from "@/features/sidebar/chat_menu";
import { useChat } from "@/state/queries";
import { IconButton } from "@/ui/button";
import { lazyPart } from "@/ui/lazy_part";
import { ListButton } from "@/ui/list_button";
import { Menu } from "@/ui/menu";
import { modKey } from "@/ui/modifier_key";

const ChatCost = lazyPart(async () => (await import("@/features/header/chat_cost")).ChatCost);

interface Props {
  chat: ChatView | undefined;
  /** The connection indicator next to the title. */
  live?: ReactNode;
  isPanelOpen: boolean;
  onPanel: () => void;
  /** Open the tab with the changes. */
  onChanges: () => void;
  /** Open the tab with the cost. */
  onCost: () => void;
}

/** The header of a chat: title and actions. */
export function ChatHeader({ chat, live, isPanelOpen, onPanel, onChanges, onCost }: Props) {
  const parent = chat?.parent_chat_id;
  const canShare = chat?.my_role === "owner" && chat.parent_chat_id === null;
  return (
    <header className="flex h-12 shrink-0 items-center gap-1 border-b border-line px-3">
      <ListButton />
      <div className="flex min-w-0 flex-1 items-center gap-2 pl-1">
        {parent && <ParentLink id={parent} />}
        <h1 className="min-w-0 truncate font-semibold">{chat?.title ?? ""}</h1>
        {live}
        {chat?.archived && <Tag text="Archived" />}
        {canShare && chat.shared && <Tag text="Shared" />}
        {chat && chat.my_role !== "owner" && <Tag text={`By ${chat.owner.name || chat.owner.username}`} />}
      </div>
      {/* Each request of an administrator is an access that the owner is told about. */}
      {chat && chat.my_role !== "admin" && (
        <Suspense>
          <ChatCost key={chat.id} chatId={chat.id} onDetails={onCost} />
        </Suspense>
      )}
      {chat && hasChanges(chat) && (
        <button
          type="button"
          onClick={onChanges}
          aria-label="Show the changes"
          className="flex h-8 shrink-0 items-center rounded-md px-2 text-small hover:bg-bg3 max-sm:hidden"
        >
          <ChangeBadge chat={chat} />
        </button>
      )}
      {chat && canShare && (
        <IconButton label="Share" onClick={() => openChatDialog("share", chat)}>
          <Share2 />
        </IconButton>
      )}
      {chat && (
        <Menu
          align="end"
          label="Actions for this chat"
          items={() => chatMenu(chat)}
          trigger={
            <IconButton label="Actions for this chat">
              <Ellipsis />
            </IconButton>
          }
        />
      )}
      <IconButton
        label={isPanelOpen ? "Hide the panel" : "Show the panel"}
        keys={`${modKey}-J`}
        aria-pressed={isPanelOpen}
        onClick={onPanel}
      >
        <PanelRight />
      </IconButton>
    </header>
  );
}

/** The way back from a subagent to its main chat. A long name leaves room for that of the subagent. */
function ParentLink({ id }: { id: string }) {
  const title = useChat(id).data?.title || "Main chat";
  return (
    <>
      <Link to={`/c/${id}`} title={title} className="max-w-2/5 shrink-0 truncate text-muted hover:text-text">
        {title}
      </Link>
      <span aria-hidden="true" className="text-muted">
        /
      </span>
    </>
  );
}

function Tag({ text }: { text: string }) {
  return <span className="shrink-0 rounded-md bg-bg3 px-1.5 py-0.5 text-small text-muted">{text}</span>;
}
