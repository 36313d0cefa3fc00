import {
  ArrowDown,
  ArrowUp,
  Ellipsis,
  GripVertical,
  OctagonPause,
  Paperclip,
  Pencil,
  Trash2,
  Undo2,
} from "lucide-react";
import { useRef, useState } from "react";
import { leftQueue, sentence } from "@/api/errors";
import { newId } from "@/api/id";
import type { Effort, SendBody } from "@/api/types.gen";
import { filesOf, plainText, type QueueRow } from "@/chat/pending_operations";
import { useConversation } from "@/features/conversation/chat_context";
import type { ChatSession } from "@/state/chat_session";
import { useShownQueue } from "@/state/session_hooks";
import { Button, IconButton } from "@/ui/button";
import { cx } from "@/ui/cx";
import { Menu } from "@/ui/menu";
import { toast } from "@/ui/toast";

/** How long an undone deletion waits for its message in the queue. */
const QUEUED_MS = 5_000;

interface Props {
  session: ChatSession;
  editing: number | null;
  /** The model of the chat. The model of a queued message is shown only if it differs. */
  modelConfigId: string | null;
  onEdit: (row: QueueRow, place: number) => void;
  /** Puts taken back messages into the message box; null while it holds an edit. */
  onTakeBack: ((rows: readonly QueueRow[]) => void) | null;
}

/** The queued messages of a chat. They can be edited, moved, deleted and sent immediately. */
export function Queue({ session, editing, modelConfigId, onEdit, onTakeBack }: Props) {
  const rows = useShownQueue(session);
  const { isOwner, modelName } = useConversation();
  const list = useRef<HTMLOListElement>(null);
  const [dragged, setDragged] = useState<number | null>(null);
  const [over, setOver] = useState<number | null>(null);
  if (rows.length === 0) return null;
  const run = (act: Promise<void>) =>
    act.catch((error: unknown) =>
      toast(leftQueue(error) ? "This message was already sent." : sentence(error), { kind: "error" }),
    );
  const takeBack = async (put: NonNullable<typeof onTakeBack>) => {
    const { rows: taken, error } = await session.takeBackQueued();
    if (taken.length > 0) put(taken);
    if (error !== null) throw error;
  };
  // At an end of the list, the focus moves to the other arrow button.
  const focusMoved = (place: number, label: string) =>
    requestAnimationFrame(() => {
      const row = list.current?.children[place];
      const ways = [`[aria-label="${label}"]:enabled`, '[aria-label^="Move"]:enabled'];
      ways
        .map((way) => row?.querySelector<HTMLElement>(way))
        .find((found) => found)
        ?.focus();
    });
  return (
    <section aria-label="Queued messages" className="mb-2">
      <div className="mb-1 flex items-center gap-2 px-1">
        <p className="min-w-0 flex-1 text-small text-muted">{summary(rows)}</p>
        {isOwner && onTakeBack && rows.some((row) => row.id !== null) && (
          <Button
            size="small"
            kind="ghost"
            title="Take the queued messages out of the queue and put them into the message box"
            onClick={() => void run(takeBack(onTakeBack))}
          >
            <Undo2 aria-hidden className="size-3.5" />
            Take back all
          </Button>
        )}
      </div>
      <ol ref={list} className="max-h-[40vh] space-y-1 overflow-y-auto">
        {rows.map((row, place) => {
          const words = plainText(row.parts).split("\n", 1)[0] ?? "";
          const files = filesOf(row.parts).length;
          const id = row.id;
          const isNeighbor = (by: 1 | -1) => rows[place + by]?.id != null && rows[place + by]?.steers === row.steers;
          const move = (by: 1 | -1) => {
            if (id === null) return;
            void run(session.move(id, by));
            focusMoved(place + by, by < 0 ? "Move up" : "Move down");
          };
          const remove = () => {
            if (id !== null) void run(deleteWithUndo(session, row, rows[place + 1]?.id ?? null));
          };
          const sendNow = () => {
            if (id === null) return;
            // The focus does not move to the button of the next row: pressing the key twice would send that message too.
            document.querySelector<HTMLElement>("[data-composer]")?.focus();
            void run(session.promote(id));
          };
          return (
            <li
              key={row.key}
              draggable={isOwner && id !== null && rows.length > 1}
              onDragStart={(event) => {
                event.dataTransfer.effectAllowed = "move";
                setDragged(id);
              }}
              onDragOver={(event) => {
                if (dragged === null || id === null) return;
                event.preventDefault();
                setOver(id);
              }}
              onDrop={(event) => {
                if (dragged === null || id === null) return;
                event.preventDefault();
                void run(session.moveTo(dragged, id));
              }}
              onDragEnd={() => {
                setDragged(null);
                setOver(null);
              }}
              className={cx(
                "flex items-center gap-1 rounded-lg border bg-bg2 py-0.5 pr-1 pl-3",
                row.faint && "opacity-60",
                dragged !== null && dragged === id && "opacity-60",
                id !== null && (editing === id || (over === id && dragged !== id)) ? "border-accent" : "border-line",
              )}
            >
              {isOwner && id !== null && rows.length > 1 && (
                <GripVertical aria-hidden className="-ml-2 size-4 shrink-0 cursor-grab text-muted max-sm:hidden" />
              )}
              <span className="w-4 shrink-0 text-small text-muted tabular-nums">{place + 1}</span>
              <span className="min-w-0 flex-1 truncate">{words || "Attachment"}</span>
              {row.steers && <span className="shrink-0 text-small text-accent">Next step</span>}
              {files > 0 && (
                <span className="flex items-center gap-0.5 text-small text-muted">
                  <Paperclip aria-hidden className="size-3" />
                  {files}
                </span>
              )}
              {row.modelConfigId && row.modelConfigId !== modelConfigId && (
                <span className="hidden max-w-24 truncate text-small text-muted sm:block">
                  {modelName(row.modelConfigId)}
                </span>
              )}
              {isOwner && id !== null && (
                <span className="flex shrink-0">
                  <IconButton label="Stop and send" size="small" onClick={sendNow}>
                    <OctagonPause />
                  </IconButton>
                  <span className="flex max-sm:hidden">
                    <IconButton label="Move up" size="small" disabled={!isNeighbor(-1)} onClick={() => move(-1)}>
                      <ArrowUp />
                    </IconButton>
                    <IconButton label="Move down" size="small" disabled={!isNeighbor(1)} onClick={() => move(1)}>
                      <ArrowDown />
                    </IconButton>
                    <IconButton label="Edit" size="small" onClick={() => onEdit(row, place + 1)}>
                      <Pencil />
                    </IconButton>
                    <IconButton label="Delete" size="small" onClick={remove}>
                      <Trash2 />
                    </IconButton>
                  </span>
                  {/* On a small screen, five buttons would leave no room for the text. */}
                  <span className="sm:hidden">
                    <Menu
                      label={`Queued message ${place + 1}`}
                      align="end"
                      trigger={
                        <IconButton label={`More for queued message ${place + 1}`} size="small">
                          <Ellipsis />
                        </IconButton>
                      }
                      items={[
                        { label: "Edit", icon: <Pencil />, onSelect: () => onEdit(row, place + 1) },
                        { label: "Move up", icon: <ArrowUp />, disabled: !isNeighbor(-1), onSelect: () => move(-1) },
                        {
                          label: "Move down",
                          icon: <ArrowDown />,
                          disabled: !isNeighbor(1),
                          onSelect: () => move(1),
                        },
                        { label: "Delete", icon: <Trash2 />, danger: true, onSelect: remove },
                      ]}
                    />
                  </span>
                </span>
              )}
            </li>
          );
        })}
      </ol>
    </section>
  );
}

/** Return the id of a message once it is in the queue; null if it is sent instead, or the stream is away. */
function queuedAs(session: ChatSession, clientId: string): Promise<number | null> {
  return new Promise((done) => {
    const look = () => {
      const found = session.store.getState().data.queue.find((one) => one.client_id === clientId);
      if (found) end(found.id);
    };
    const timer = setTimeout(() => end(null), QUEUED_MS);
    const stop = session.store.subscribe(look);
    const end = (id: number | null) => {
      clearTimeout(timer);
      stop();
      done(id);
    };
    look();
  });
}

/** Delete a queued message, and offer to undo it: the message returns to its place, or to the end of the queue. */
async function deleteWithUndo(session: ChatSession, row: QueueRow, next: number | null): Promise<void> {
  await session.deleteQueued(row.id as number);
  const undo = async () => {
    const clientId = newId();
    const outcome = await session.send(
      {
        content: row.parts.flatMap((part): SendBody["content"] => {
          if (part.type === "text" || part.type === "file-reference") return [part];
          return part.type === "file" && part.file_id ? [{ type: "file", file_id: part.file_id }] : [];
        }),
        ...(row.modelConfigId ? { model_config_id: row.modelConfigId } : {}),
        ...(row.reasoningEffort ? { reasoning_effort: row.reasoningEffort as Effort } : {}),
        ...(row.steers ? { busy_behavior: "steer" as const } : {}),
      },
      [...row.parts],
      clientId,
    );
    if (outcome === "queue_full") toast("The queue is full.", { kind: "error" });
    const again = next === null || outcome !== "sent" ? null : await queuedAs(session, clientId);
    if (again !== null && next !== null) await session.moveTo(again, next);
  };
  toast("Deleted from the queue.", {
    action: {
      label: "Undo",
      run: () => void undo().catch((error: unknown) => toast(sentence(error), { kind: "error" })),
    },
  });
}

function summary(rows: readonly QueueRow[]): string {
  const steering = rows.filter((row) => row.steers).length;
  const later = rows.length - steering;
  if (steering === 0)
    return `${later} queued. ${later === 1 ? "It" : "The next"} is sent when the agent is done or stopped.`;
  if (later === 0) return `${steering} queued. The agent reads ${steering === 1 ? "it" : "them"} at its next step.`;
  return `${rows.length} messages wait. The agent reads ${steering} at its next step and ${later} when it is done or stopped.`;
}
