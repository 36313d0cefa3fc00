import { ChevronDown, ChevronUp, CornerDownRight, Link as LinkIcon, Pencil, RotateCcw } from "lucide-react";
import { memo, useMemo, useState } from "react";
import { spaced, tokenOf } from "@/chat/file_references";
import { filesOf, plainText } from "@/chat/pending_operations";
import type { Message, Part } from "@/chat/types";
import { useConversation } from "@/features/conversation/chat_context";
import { Rest } from "@/features/timeline/markdown";
import { PathLink } from "@/features/timeline/path_link";
import { When } from "@/features/timeline/timestamp";
import { Button, IconButton } from "@/ui/button";
import { copyText } from "@/ui/clipboard";
import { cx } from "@/ui/cx";
import { CopyButton } from "./code_block";
import { Files } from "./message_files";

const FOLD_LINES = 12;
const FOLD_CHARS = 1600;
/** The number of characters that are rendered at once; longer texts have a button to show more. */
const STEP = 100_000;

/** The text of a user message: plain text with line breaks, and references as chips. */
export function UserText({ parts }: { parts: readonly Part[] }) {
  return spaced(parts).map((piece, index) =>
    typeof piece === "string" ? (
      <span key={index}>{piece}</span>
    ) : (
      <PathLink
        key={index}
        path={piece.file_name}
        line={piece.start_line || null}
        className="rounded bg-bg1 px-1.5 py-0.5 font-mono text-small"
        title={piece.content}
      >
        {tokenOf(piece).slice(1)}
      </PathLink>
    ),
  );
}

/** Return the first characters of the parts. */
function headParts(parts: readonly Part[], length: number): readonly Part[] {
  let left = length;
  return parts.flatMap((part): Part[] => {
    if (part.type !== "text") return [part];
    const text = part.text.slice(0, Math.max(0, left));
    left -= part.text.length;
    return text ? [{ ...part, text }] : [];
  });
}

interface Props {
  message: Message;
  inContext: boolean;
  steered: boolean;
}

export const UserRow = memo(function UserRow({ message, inContext, steered }: Props) {
  const { isOwner, isArchived, editMessage, chatId } = useConversation();
  const text = plainText(message.content);
  return (
    <Bubble
      parts={message.content}
      faint={!inContext}
      steered={steered}
      title={inContext ? undefined : "Not in the agent's context any more"}
    >
      <div className="mt-1 flex items-center justify-end gap-0.5 sm:absolute sm:right-0 sm:top-full sm:mt-0 sm:rounded-md sm:bg-bg1 opacity-0 transition-opacity group-focus-within/user:opacity-100 group-hover/user:opacity-100 pointer-coarse:opacity-100">
        <When at={message.created_at} className="mr-1" />
        <CopyButton text={text} label="Copy prompt" />
        <IconButton
          label="Copy link"
          size="small"
          onClick={() => void copyText(`${location.origin}/c/${chatId}?m=${message.id}`)}
        >
          <LinkIcon />
        </IconButton>
        {isOwner && !isArchived && inContext && (
          <IconButton label="Edit and resend" size="small" onClick={() => editMessage(message)}>
            <Pencil />
          </IconButton>
        )}
      </div>
    </Bubble>
  );
});

interface BubbleProps {
  parts: readonly Part[];
  faint?: boolean;
  steered?: boolean;
  failed?: boolean;
  waits?: boolean;
  title?: string | undefined;
  children?: React.ReactNode;
}

function Bubble({ parts, faint, steered, failed, waits, title, children }: BubbleProps) {
  const [open, setOpen] = useState(false);
  const [length, setLength] = useState(STEP);
  const text = useMemo(() => plainText(parts), [parts]);
  const isLong = text.length > FOLD_CHARS || text.split("\n").length > FOLD_LINES;
  const most = open ? length : 2 * FOLD_CHARS;
  const files = filesOf(parts);
  return (
    <div className="group/user relative flex flex-col items-end" title={title}>
      {steered && (
        <p
          className="mb-1 flex items-center gap-1 text-small text-muted"
          title="The agent read this message between two steps of its turn"
        >
          <CornerDownRight aria-hidden className="size-3.5" />
          Steered
        </p>
      )}
      {text.trim() && (
        <div
          className={cx(
            "max-w-[85%] rounded-2xl rounded-br-md px-4 py-2.5 text-prose",
            failed ? "border border-danger bg-removed" : waits ? "border border-control border-dashed" : "bg-bg3",
            faint && "opacity-60",
          )}
        >
          <div className={cx("break-words whitespace-pre-wrap", isLong && !open && "line-clamp-[12]")}>
            <UserText parts={isLong ? headParts(parts, most) : parts} />
          </div>
          {open && text.length > length && (
            <Rest left={text.length - length} onMore={() => setLength(length + STEP)} whole={text} />
          )}
          {isLong && (
            <button
              type="button"
              className="mt-1 flex items-center gap-1 text-small text-muted hover:text-text"
              onClick={() => setOpen(!open)}
            >
              {open ? <ChevronUp aria-hidden className="size-3.5" /> : <ChevronDown aria-hidden className="size-3.5" />}
              {open ? "Show less" : "Show all"}
            </button>
          )}
        </div>
      )}
      {files.length > 0 && (
        <div className="mt-2">
          <Files files={files} />
        </div>
      )}
      {children}
    </div>
  );
}

interface PendingProps {
  id: string;
  parts: readonly Part[];
  failed: string | undefined;
  waits?: boolean | undefined;
}

/** The row of a message that is being sent, waits for the connection, or failed. */
export function PendingRow({ id, parts, failed, waits }: PendingProps) {
  const { session, insertText } = useConversation();
  return (
    <Bubble parts={parts} faint={!failed && !waits} failed={Boolean(failed)} waits={Boolean(waits)}>
      {failed || waits ? (
        <div role={failed ? "alert" : "status"} className="mt-1 flex flex-wrap items-center justify-end gap-2">
          <span className={cx("text-small", failed ? "text-danger" : "text-muted")}>
            {failed ? `Not sent. ${failed}` : "No connection. This is sent when the server can be reached."}
          </span>
          {failed && (
            <Button size="small" onClick={() => void session.resend(id)}>
              <RotateCcw aria-hidden className="size-3.5" />
              Retry
            </Button>
          )}
          <Button
            size="small"
            onClick={() => {
              const op = session.discard(id);
              if (op) insertText(plainText(op.parts));
            }}
          >
            Edit
          </Button>
          <Button size="small" onClick={() => session.discard(id)}>
            Discard
          </Button>
        </div>
      ) : (
        <p className="mt-1 text-small text-muted">Sending</p>
      )}
    </Bubble>
  );
}
