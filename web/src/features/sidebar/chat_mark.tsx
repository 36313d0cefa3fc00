import { Archive, CirclePause, Hand, Hourglass, TriangleAlert } from "lucide-react";
import { MARK_NAMES, type Mark } from "@/chat/sidebar_list";
import { Spinner } from "@/ui/spinner";

/** The state of a chat as an icon with a name, not only a color. An idle chat has none. */
export function ChatMark({ mark }: { mark: Mark }) {
  if (mark === "idle") return <span className="block size-4 shrink-0" />;
  return (
    <span
      role="img"
      aria-label={MARK_NAMES[mark]}
      title={MARK_NAMES[mark]}
      className="grid size-4 shrink-0 place-items-center [&_svg]:size-4"
    >
      {shape(mark)}
    </span>
  );
}

function shape(mark: Mark) {
  switch (mark) {
    case "unread":
      return <span className="size-2 rounded-full bg-accent" />;
    case "working":
      return <Spinner className="size-3.5 text-accent" />;
    case "stopping":
      return <CirclePause className="text-muted" />;
    case "needs":
      return <Hand className="text-warn" />;
    case "slot":
      return <Hourglass className="text-muted" />;
    case "failed":
      return <TriangleAlert className="text-danger" />;
    case "archived":
      return <Archive className="text-muted" />;
    default:
      return null;
  }
}
