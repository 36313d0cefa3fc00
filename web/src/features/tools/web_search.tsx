import { Globe } from "lucide-react";
import type { Tool } from "@/features/tools/tool";

/** Its results stand in a row of sources; the card is one line. */
export const webSearch: Tool = { icon: Globe };
