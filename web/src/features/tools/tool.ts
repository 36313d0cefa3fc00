import type { LucideIcon } from "lucide-react";
import type { ComponentType } from "react";
import type { ToolView } from "@/chat/preview";
import type { ToolState } from "@/chat/tools";

export interface BodyProps {
  call: ToolView;
  state: ToolState;
}

/** The display of one tool. */
export interface Tool {
  icon: LucideIcon;
  /** The body of the card; absent if the header is sufficient. */
  Body?: ComponentType<BodyProps>;
  /** Replaces header and body, for forms and documents. */
  Card?: ComponentType<BodyProps & { active: boolean; latest: boolean }>;
  /** Whether the card is open while the call runs. */
  opensWhileRunning?: boolean;
}
