import { ChevronRight, TriangleAlert } from "lucide-react";
import { useState } from "react";
import { Link } from "react-router";
import { sentence } from "@/api/errors";
import { type ErrorAction, errorCard, offeredActions } from "@/chat/turn_errors";
import type { ChatError, Retry } from "@/chat/types";
import { useConversation } from "@/features/conversation/chat_context";
import { LastTurnDebugButton } from "@/features/debug/debug_button";
import { TryAgainNow } from "@/features/timeline/live_row";
import { useMe } from "@/state/queries";
import { useNow } from "@/state/session_hooks";
import { Button } from "@/ui/button";
import { cx } from "@/ui/cx";
import { toast } from "@/ui/toast";
import { CopyButton } from "./code_block";

/** The banner for a retry after a provider error: the time of the next attempt, its number, and a stop button. */
export function RetryBanner({ retry, clockSkew }: { retry: Retry; clockSkew: number }) {
  const { session, isOwner } = useConversation();
  const now = useNow(500) + clockSkew;
  const left = Date.parse(retry.retrying_at) - now;
  const { title } = errorCard({ kind: retry.kind ?? "generic", message: retry.error });
  return (
    <section
      aria-label="Retrying"
      className="flex flex-wrap items-center gap-3 rounded-lg border border-warn bg-bg1 px-4 py-3"
    >
      <TriangleAlert aria-hidden className="size-4 shrink-0 text-warn" />
      <div className="min-w-0 flex-1">
        <p className="font-medium">
          {title}
          {retry.provider && <span className="font-normal text-muted"> · {retry.provider}</span>}
        </p>
        <p className="text-small text-muted tabular-nums">
          {left > 0 ? `Next attempt in ${Math.max(1, Math.ceil(left / 1000))} s` : "Trying again"} · Attempt{" "}
          {retry.attempt}
        </p>
        {retry.error && <p className="text-small break-words text-muted">{retry.error}</p>}
      </div>
      {isOwner && left > 0 && <TryAgainNow session={session} />}
      {isOwner && (
        <Button
          size="small"
          onClick={() => void session.stop().catch((error: unknown) => toast(sentence(error), { kind: "error" }))}
        >
          Stop
        </Button>
      )}
    </section>
  );
}

interface ErrorProps {
  error: ChatError;
  queued: number;
  lastPrompt: (() => void) | null;
}

/** The row of a failed turn, with the error and the available actions. */
export function ErrorRow({ error, queued, lastPrompt }: ErrorProps) {
  const conversation = useConversation();
  const { data: me } = useMe();
  const [open, setOpen] = useState(false);
  const [busy, setBusy] = useState(false);
  const card = errorCard(error);
  const actions = offeredActions(error, {
    mayAct: conversation.isOwner && !conversation.isArchived,
    isAdmin: me?.role === "admin",
    hasPrompt: lastPrompt !== null,
  });
  const run = (act: () => Promise<void>) => {
    setBusy(true);
    act()
      .catch((failure: unknown) => toast(sentence(failure), { kind: "error" }))
      .finally(() => setBusy(false));
  };
  const act = (action: ErrorAction, label: string, start: () => Promise<void>) => (
    <Button key={action} size="small" kind="primary" disabled={busy} onClick={() => run(start)}>
      {label}
    </Button>
  );
  const link = (action: ErrorAction, label: string, to: string) => (
    <Link
      key={action}
      to={to}
      className="inline-flex h-7 items-center rounded-md border border-line px-2 text-small font-medium hover:bg-bg3 pointer-coarse:h-11"
    >
      {label}
    </Link>
  );
  const button = (action: ErrorAction) => {
    switch (action) {
      case "retry":
        return act(action, "Try again", () => conversation.session.retry());
      case "compact":
        return act(action, "Compact and continue", () => conversation.session.compact());
      case "repair":
        return act(action, "Repair", () => conversation.session.repair());
      case "switch_model":
        return (
          <Button key={action} size="small" onClick={conversation.openModelPicker}>
            Switch model
          </Button>
        );
      case "edit":
        return (
          <Button key={action} size="small" onClick={() => lastPrompt?.()}>
            Edit the prompt
          </Button>
        );
      case "usage":
        return link(action, "Usage", "/usage");
      case "limit":
        return link(action, "Raise the limit", "/settings/limits");
      case "own_key":
        return link(action, "Use your own key", "/settings/keys");
      case "provider":
        return link(action, "Open providers", "/settings/providers");
    }
  };
  const detail = [error.status_code ? `HTTP ${error.status_code}` : "", error.detail ?? ""].filter(Boolean).join("\n");
  return (
    <section role="alert" className="rounded-lg border border-danger bg-bg1 px-4 py-3" data-testid="chat-error">
      <p className="flex items-center gap-2 font-medium text-danger">
        <TriangleAlert aria-hidden className="size-4 shrink-0" />
        {card.title}
        {error.provider && <span className="font-normal text-muted">{error.provider}</span>}
      </p>
      <p className="mt-1 break-words whitespace-pre-wrap">{error.message}</p>
      {detail && (
        <div className="mt-2">
          <button
            type="button"
            aria-expanded={open}
            onClick={() => setOpen(!open)}
            className="flex items-center gap-1 text-small text-muted hover:text-text"
          >
            <ChevronRight aria-hidden className={cx("size-3.5 transition-transform", open && "rotate-90")} />
            Details
          </button>
          {open && (
            <div className="relative mt-1">
              <pre className="max-h-64 overflow-auto rounded-md bg-bg2 p-2 font-mono text-small break-words whitespace-pre-wrap">
                {detail}
              </pre>
              <span className="absolute top-1 right-1">
                <CopyButton text={detail} label="Copy details" />
              </span>
            </div>
          )}
        </div>
      )}
      {queued > 0 && (
        <p className="mt-2 text-small text-muted">
          {queued} queued {queued === 1 ? "message waits" : "messages wait"}.
        </p>
      )}
      <div className="mt-3 flex flex-wrap gap-2 empty:hidden">
        {actions.map(button)}
        <LastTurnDebugButton />
      </div>
    </section>
  );
}
