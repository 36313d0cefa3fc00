import { useState } from "react";
import { sentence } from "@/api/errors";
import type { ChatView } from "@/api/types.gen";
import { refreshContext } from "@/api/workspaces";
import type { ChatSession } from "@/state/chat_session";
import { queryClient, useCost } from "@/state/queries";
import { Button } from "@/ui/button";
import { cx } from "@/ui/cx";
import { compact, dollars } from "@/ui/money";
import { Popover } from "@/ui/popover";
import { toast } from "@/ui/toast";

interface Props {
  chat: ChatView;
  session: ChatSession;
  /** The percentage of the context at which the chat is compacted automatically. */
  threshold: number;
  canAct: boolean;
}

/** A ring that shows how much of the context is used, and the cost of the chat. */
export function ContextRing({ chat, session, threshold, canAct }: Props) {
  const [open, setOpen] = useState(false);
  const cost = useCost(chat.id, open);
  const used = chat.usage.context_tokens ?? null;
  const limit = chat.usage.context_limit ?? null;
  const share = used !== null && limit ? Math.min(1, used / limit) : null;
  const percent = share === null ? null : Math.round(share * 100);
  const color =
    percent === null
      ? "text-control"
      : percent >= 95
        ? "text-danger"
        : threshold < 100 && percent >= threshold - 10
          ? "text-warn"
          : "text-accent";
  const radius = 7;
  const around = 2 * Math.PI * radius;
  return (
    <Popover
      label="Context"
      side="top"
      align="end"
      open={open}
      onOpenChange={setOpen}
      className="w-72"
      trigger={
        <Button
          size="small"
          kind="ghost"
          aria-label={percent === null ? "Context: not known yet" : `Context: ${percent} % full`}
          className="text-muted!"
        >
          <svg aria-hidden viewBox="0 0 18 18" className={cx("size-4 -rotate-90", color)}>
            <circle cx="9" cy="9" r={radius} fill="none" stroke="var(--line)" strokeWidth="3" />
            {share !== null && (
              <circle
                cx="9"
                cy="9"
                r={radius}
                fill="none"
                stroke="currentColor"
                strokeWidth="3"
                strokeDasharray={`${around * share} ${around}`}
              />
            )}
          </svg>
          <span className="tabular-nums max-sm:hidden">{percent === null ? "" : `${percent} %`}</span>
        </Button>
      }
    >
      <p className="font-medium">Context</p>
      <p className="text-small text-muted">
        {used === null ? "Known after the next answer." : `${compact(used)} of ${limit ? compact(limit) : "?"} tokens.`}{" "}
        {threshold >= 100 ? "Never compacts automatically." : `Compacts at ${threshold} %.`}
      </p>
      {cost.data && (
        <p className="mt-2 text-small text-muted">
          This chat has cost {dollars(cost.data.total_cost_micros)} in {cost.data.request_count} requests
          {cost.data.unpriced_request_count > 0 ? `, ${cost.data.unpriced_request_count} of them without a price` : ""}.
        </p>
      )}
      {chat.context?.dirty && (
        <p className="mt-2 text-small text-warn">
          Instructions or skills of the workspace have changed since.
          <Button
            size="small"
            className="mt-1.5 flex!"
            onClick={() =>
              refreshContext(chat.id)
                .then(() => queryClient.invalidateQueries({ queryKey: ["context", chat.id] }))
                .catch((error: unknown) => toast(sentence(error), { kind: "error" }))
            }
          >
            Use the new version
          </Button>
        </p>
      )}
      {canAct && (
        <Button
          size="small"
          className="mt-3"
          onClick={() => {
            setOpen(false);
            session.compact().catch((error: unknown) => toast(sentence(error), { kind: "error" }));
          }}
        >
          Compact now
        </Button>
      )}
    </Popover>
  );
}
