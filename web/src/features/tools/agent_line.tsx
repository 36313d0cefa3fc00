/** The state of a subagent, and the link to it. */
import { ArrowUpRight, CircleCheck, CirclePause, Clock, Hand, TriangleAlert } from "lucide-react";
import { Link } from "react-router";
import type { AgentState, AgentTone } from "@/chat/subagent_texts";
import { cx } from "@/ui/cx";
import { Spinner } from "@/ui/spinner";

const COLORS: Record<AgentTone, string> = {
  busy: "text-muted",
  needs_you: "text-warn",
  ok: "text-ok",
  warn: "text-warn",
  danger: "text-danger",
  muted: "text-muted",
};

/** The state of a subagent as an icon and words. */
export function StateText({ state }: { state: AgentState }) {
  const { tone, text } = state;
  const icon = "size-3.5 shrink-0";
  return (
    <span className={cx("flex min-w-0 items-center gap-1 text-small", COLORS[tone])}>
      {tone === "busy" && <Spinner />}
      {tone === "needs_you" && <Hand aria-hidden className={icon} />}
      {tone === "ok" && <CircleCheck aria-hidden className={icon} />}
      {tone === "warn" && <Clock aria-hidden className={icon} />}
      {tone === "danger" && <TriangleAlert aria-hidden className={icon} />}
      {tone === "muted" && <CirclePause aria-hidden className={icon} />}
      <span className="min-w-0 break-words">{text}</span>
    </span>
  );
}

/** A link that looks like a small button, to the chat of a subagent. */
export function OpenAgent({ chatId, title }: { chatId: string; title: string }) {
  return (
    <Link
      to={`/c/${chatId}`}
      aria-label={`Open ${title}`}
      className="inline-flex h-7 shrink-0 items-center gap-0.5 rounded-md border border-line bg-bg1 px-2 text-small font-medium hover:bg-bg3 pointer-coarse:min-h-11"
    >
      Open
      <ArrowUpRight aria-hidden className="size-3.5" />
    </Link>
  );
}

interface LineProps {
  chatId: string;
  title: string;
  state?: AgentState;
}

/** The title of a subagent, its state, and the link to it. On a phone, a long state has a line of its own. */
export function AgentLine({ chatId, title, state }: LineProps) {
  return (
    <div className="flex flex-wrap items-center justify-between gap-x-3 gap-y-1">
      <span className="min-w-0 truncate font-medium">{title}</span>
      <span className="ml-auto flex min-w-0 items-center gap-2">
        {state && <StateText state={state} />}
        <OpenAgent chatId={chatId} title={title} />
      </span>
    </div>
  );
}
