import { Globe } from "lucide-react";
import type { Tool } from "./tool_display";

/** The results are in a row of sources, so the card has no body. */
export const webSearch: Tool = { icon: Globe };
