import { ArrowDown, ArrowUp, Ellipsis, GripVertical, Paperclip, Pencil, SendHorizontal, Trash2 } from "lucide-react";
import { useRef, useState } from "react";
import { leftQueue, sentence } from "@/api/errors";
import { filesOf, plainText, type QueueRow } from "@/chat/pending_operations";
import { useConversation } from "@/features/conversation/chat_context";
import type { ChatSession } from "@/state/chat_session";
import { useShownQueue } from "@/state/session_hooks";
import { IconButton } from "@/ui/button";
import { cx } from "@/ui/cx";
import { Menu } from "@/ui/menu";
import { toast } from "@/ui/toast";

interface Props {
  session: ChatSession;
  editing: number | null;
  /** The model of the chat. The model of a queued message is shown only if it differs. */
  modelConfigId: string | null;
  onEdit: (row: QueueRow, place: number) => void;
}

/** The queued messages of a chat. They can be edited, moved, deleted and sent immediately. */
export function Queue({ session, editing, modelConfigId, onEdit }: Props) {
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
      <p className="mb-1 px-1 text-small text-muted">{summary(rows)}</p>
      <ol ref={list} className="max-h-[40vh] space-y-1 overflow-y-auto">
        {rows.map((row, place) => {
          const words = plainText(row.parts).split("\n", 1)[0] ?? "";
          const files = filesOf(row.parts).length;
          const id = row.id;
          const move = (by: 1 | -1) => {
            if (id === null) return;
            void run(session.move(id, by));
            focusMoved(place + by, by < 0 ? "Move up" : "Move down");
          };
          const remove = () => id !== null && void run(session.deleteQueued(id));
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
                    <SendHorizontal />
                  </IconButton>
                  <span className="flex max-sm:hidden">
                    <IconButton label="Move up" size="small" disabled={place === 0} onClick={() => move(-1)}>
                      <ArrowUp />
                    </IconButton>
                    <IconButton
                      label="Move down"
                      size="small"
                      disabled={place === rows.length - 1}
                      onClick={() => move(1)}
                    >
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
                        { label: "Move up", icon: <ArrowUp />, disabled: place === 0, onSelect: () => move(-1) },
                        {
                          label: "Move down",
                          icon: <ArrowDown />,
                          disabled: place === rows.length - 1,
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

function summary(rows: readonly QueueRow[]): string {
  const steering = rows.filter((row) => row.steers).length;
  const later = rows.length - steering;
  if (steering === 0) return `${later} queued. ${later === 1 ? "It is" : "They are"} sent when the agent is done.`;
  if (later === 0) return `${steering} queued. The agent reads ${steering === 1 ? "it" : "them"} at its next step.`;
  return `${rows.length} queued: ${steering} for the agent's next step, ${later} for when it is done.`;
}
