/** A user's own choice of models for chats and subagents: between the lists of the page and the API. */
import type { OverrideChange, PersonalOverride, SubagentOverrideChange } from "@/api/types.gen";

/** The choice of the chat's own model for a subagent, beside the ids of models. An empty text is the server's choice. */
export const CHATS_OWN = "chat_default";

/** Return the choice for the list: the id of a model, CHATS_OWN, or an empty text. */
export function chosenModel(override: PersonalOverride | null): string {
  if (override?.mode === "model") return override.model_config_id ?? "";
  return override?.mode === "chat_default" ? CHATS_OWN : "";
}

/** Return the change for new chats. They have no parent, so their only own choice is a model. */
export function chatOverride(choice: string): OverrideChange | null {
  return choice && choice !== CHATS_OWN ? { mode: "model", model_config_id: choice } : null;
}

export function subagentOverride(choice: string): SubagentOverrideChange | null {
  if (!choice) return null;
  return choice === CHATS_OWN ? { mode: "chat_default" } : { mode: "model", model_config_id: choice };
}
