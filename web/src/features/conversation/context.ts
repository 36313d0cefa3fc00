import { createContext, useContext } from "react";
import type { Message } from "@/chat/types";
import type { OpenFile } from "@/features/conversation/open_file";
import type { ChatSession } from "@/state/chat_session";

/** What rows and cards may do with the chat they stand in. */
export interface Conversation {
  chatId: string;
  session: ChatSession;
  /** The reader owns the chat and may act on it. */
  isOwner: boolean;
  isArchived: boolean;
  planMode: boolean;
  /** Send a text as the user; cards with forms use it. */
  sendText: (text: string, options?: { planMode?: boolean }) => Promise<void>;
  /** Put a text into the composer and go there. */
  insertText: (text: string) => void;
  editMessage: (message: Message) => void;
  openModelPicker: () => void;
  /** Show a file of the workspace in the panel; null where the reader has none to look into. */
  openFile: OpenFile | null;
  /** The name of a model config, if it is known. */
  modelName: (id: string | null) => string | null;
}

export const ConversationContext = createContext<Conversation | null>(null);

export function useConversation(): Conversation {
  const value = useContext(ConversationContext);
  if (!value) throw new Error("A row stands outside of a conversation.");
  return value;
}
