import { Bot } from "lucide-react";
import { Suspense } from "react";
import { lazyPart } from "@/ui/lazy_part";
import type { BodyProps, Tool } from "./tool_display";

// Loaded with the first subagent. A direct import would be circular, because the card shows a timeline.
const SpawnCard = lazyPart(async () => (await import("@/features/tools/spawn_card")).SpawnCard);

function Card(props: BodyProps) {
  return (
    <Suspense fallback={<div className="h-22 rounded-lg border border-line bg-bg1" />}>
      <SpawnCard {...props} />
    </Suspense>
  );
}

export const spawnAgent: Tool = { icon: Bot, Card };
