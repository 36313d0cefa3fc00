import { NewChatPage as NewChat } from "@/features/conversation/new_chat_page";
import { ListButton } from "@/ui/list_button";

/** The page for a new chat, with the header that small screens need. */
export function NewChatPage() {
  return (
    <div className="flex min-h-0 flex-1 flex-col">
      <header className="flex h-12 shrink-0 items-center px-3">
        <ListButton />
      </header>
      <NewChat />
    </div>
  );
}
