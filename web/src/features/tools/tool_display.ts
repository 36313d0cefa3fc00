import type { LucideIcon } from "lucide-react";
import type { ComponentType } from "react";
import type { ToolView } from "@/chat/preview";
import type { ToolState } from "@/chat/tool_texts";

export interface BodyProps {
  call: ToolView;
  state: ToolState;
}

/** The display of one tool. */
export interface Tool {
  icon: LucideIcon;
  /** The text of the header, if it depends on more than the call. */
  Label?: ComponentType<BodyProps>;
  /** The body of the card; absent if the header is sufficient. */
  Body?: ComponentType<BodyProps>;
  /** Whether the body shows only the result. A card without a result cannot be opened then. */
  showsResult?: boolean;
  /** Replaces header and body, for forms and documents. */
  Card?: ComponentType<BodyProps & { active: boolean; latest: boolean }>;
  /** Whether the card is open while the call runs. */
  opensWhileRunning?: boolean;
}
