import type { LucideIcon } from "lucide-react";
import type { ComponentType } from "react";
import type { ToolView } from "@/chat/preview";
import type { ToolState } from "@/chat/tools";

export interface BodyProps {
  call: ToolView;
  state: ToolState;
}

/** How one tool is shown. */
export interface Tool {
  icon: LucideIcon;
  /** What the card opens to; none when the header says it all. */
  Body?: ComponentType<BodyProps>;
  /** Shown instead of header and body: forms and documents. */
  Card?: ComponentType<BodyProps & { active: boolean; latest: boolean }>;
  /** Open without a click while it runs. */
  opensWhileRunning?: boolean;
}
