import { useQuery } from "@tanstack/react-query";
import { ClipboardList } from "lucide-react";
import { useState } from "react";
import { useStore } from "zustand";
import { isStatus } from "@/api/errors";
import { fetchFile } from "@/api/files";
import { failureOf, fields, text } from "@/chat/tool_texts";
import { useConversation } from "@/features/conversation/chat_context";
import { CopyButton, download } from "@/features/timeline/code_block";
import { Markdown } from "@/features/timeline/markdown";
import { Button } from "@/ui/button";
import { cx } from "@/ui/cx";
import { pulsing } from "@/ui/endless_animations";
import { Spinner } from "@/ui/spinner";
import type { BodyProps } from "./tool_display";

interface Props extends BodyProps {
  active: boolean;
  latest: boolean;
}

const IMPLEMENT = "The plan is good. Implement it.";

/** The card of a plan: the document, and the actions while it is the newest plan. */
export function PlanCard({ call, state, active, latest }: Props) {
  const { chatId, session, isOwner, isArchived } = useConversation();
  const status = useStore(session.store, (one) => one.data.status);
  const id = text(fields(call.result).file_id);
  const plan = useQuery({
    queryKey: ["plan", id],
    enabled: Boolean(id),
    staleTime: Number.POSITIVE_INFINITY,
    queryFn: async () => {
      try {
        return await (await fetchFile(id, chatId)).text();
      } catch (error) {
        throw new Error(isStatus(error, 404) ? "The plan's file has expired." : "The plan could not be loaded.");
      }
    },
  });
  const open = latest && isOwner && !isArchived && status === "waiting" && state === "done";
  return (
    <section aria-label="Plan" className={cx("rounded-lg border bg-bg1", open ? "border-accent" : "border-line")}>
      <div className="flex items-center gap-2 border-b border-line px-4 py-2">
        <ClipboardList aria-hidden className="size-4 text-muted" />
        <span className="flex-1 font-medium">{open ? "Plan ready" : latest ? "Plan" : "Earlier plan"}</span>
        {!call.hasResult && active && <Spinner />}
        {state === "failed" && <span className="truncate text-small text-danger">{failureOf(call)}</span>}
        {plan.data && <CopyButton text={plan.data} label="Copy plan" />}
        {plan.data && (
          <Button size="small" kind="ghost" onClick={() => download(plan.data, "plan.md", "text/markdown")}>
            Download
          </Button>
        )}
      </div>
      {id && (
        <div className="px-4 py-3">
          {plan.data !== undefined && <Markdown text={plan.data} />}
          {plan.isLoading && (
            <p ref={pulsing} className="text-muted">
              Loading the plan
            </p>
          )}
          {plan.isError && (
            <p className="flex items-center gap-2 text-danger">
              {plan.error.message}
              <Button size="small" onClick={() => void plan.refetch()}>
                Retry
              </Button>
            </p>
          )}
        </div>
      )}
      {open && <Actions />}
    </section>
  );
}

function Actions() {
  const { sendText, insertText } = useConversation();
  const [sending, setSending] = useState(false);
  const askForChanges = () => {
    const selected = window.getSelection()?.toString().trim() ?? "";
    insertText(
      selected
        ? `${selected
            .split("\n")
            .map((line) => `> ${line}`)
            .join("\n")}\n\n`
        : "Please change the plan: ",
    );
  };
  return (
    <div className="flex flex-wrap justify-end gap-2 border-t border-line px-4 py-2">
      <Button onMouseDown={(event) => event.preventDefault()} onClick={askForChanges}>
        Ask for changes
      </Button>
      <Button
        kind="primary"
        disabled={sending}
        onClick={() => {
          setSending(true);
          void sendText(IMPLEMENT, { planMode: false }).finally(() => setSending(false));
        }}
      >
        Implement
      </Button>
    </div>
  );
}
