/** Replacements for a chat or its composer if no message can be sent. */
import { Link } from "react-router";
import type { ChatView } from "@/api/types.gen";
import { Button } from "@/ui/button";

/** The page of a chat that was deleted or unshared while it was open. */
export function StreamEnded({ ending }: { ending: "forbidden" | "gone" }) {
  return (
    <div className="grid flex-1 place-items-center p-6 text-center">
      <div>
        <h1 className="text-[18px] font-semibold">
          {ending === "forbidden" ? "No longer shared with you" : "This chat was deleted"}
        </h1>
        <p className="mt-1 text-muted">
          {ending === "forbidden" ? "Its owner ended the sharing." : "It cannot be restored."}
        </p>
        <Link to="/" className="mt-4 inline-block text-accent underline">
          New chat
        </Link>
      </div>
    </div>
  );
}

interface ReadOnlyProps {
  chat: ChatView | undefined;
  isArchived: boolean;
  onUnarchive: () => void;
}

/** The text in place of the composer: why no message can be sent, and what to do. */
export function ReadOnly({ chat, isArchived, onUnarchive }: ReadOnlyProps) {
  const isOwner = chat?.my_role === "owner";
  return (
    <div className="flex items-center gap-3 rounded-2xl border border-line bg-bg2 px-4 py-3 text-muted">
      <span className="flex-1">
        {isOwner && isArchived
          ? "This chat is archived."
          : `${chat?.owner.name || chat?.owner.username || "Another user"} owns this chat. You can read it.`}
      </span>
      {isOwner && isArchived && <Button onClick={onUnarchive}>Unarchive</Button>}
    </div>
  );
}
