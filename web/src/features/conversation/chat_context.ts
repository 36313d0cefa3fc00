import { createContext, useContext } from "react";
import type { Message } from "@/chat/types";
import type { OpenFile } from "@/features/conversation/open_file";
import type { ChatSession } from "@/state/chat_session";

/** The chat that rows and cards belong to, and the actions that they can take. */
export interface Conversation {
  chatId: string;
  session: ChatSession;
  /** The user owns the chat and may change it. */
  isOwner: boolean;
  isArchived: boolean;
  planMode: boolean;
  /** Send a message of the user; used by cards with forms. */
  sendText: (text: string, options?: { planMode?: boolean }) => Promise<void>;
  /** Insert a text into the composer and focus it. */
  insertText: (text: string) => void;
  editMessage: (message: Message) => void;
  openModelPicker: () => void;
  /** Open a file of the workspace in the panel; null if the user may not see the workspace. */
  openFile: OpenFile | null;
  /** Return the name of a model config, if it is known. */
  modelName: (id: string | null) => string | null;
}

export const ConversationContext = createContext<Conversation | null>(null);

export function useConversation(): Conversation {
  const value = useContext(ConversationContext);
  if (!value) throw new Error("useConversation must be used inside a conversation.");
  return value;
}
