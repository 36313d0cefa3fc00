import { useEffect, useState } from "react";
import { createPortal, flushSync } from "react-dom";
import type { ChatView } from "@/api/types.gen";
import { RowMaker } from "@/chat/timeline_rows";
import { RowView } from "@/features/timeline/row";
import { dayKey } from "@/features/timeline/timestamp";
import type { ChatSession } from "@/state/chat_session";
import { Moment } from "@/ui/relative_time";

/** Load the whole chat, then print it. The browser's print command prints only the loaded messages. */
export async function printChat(session: ChatSession): Promise<void> {
  await session.loadUntil(0);
  window.print();
}

/** The printed form of a chat: all loaded rows, in light colors. It is mounted only during printing. */
export function PrintSheet({ session, chat }: { session: ChatSession; chat: ChatView | undefined }) {
  const [isOn, setOn] = useState(false);
  useEffect(() => {
    // The browser renders the page for printing when this returns.
    const begin = () => flushSync(() => setOn(true));
    const end = () => setOn(false);
    window.addEventListener("beforeprint", begin);
    window.addEventListener("afterprint", end);
    return () => {
      window.removeEventListener("beforeprint", begin);
      window.removeEventListener("afterprint", end);
    };
  }, []);
  if (!isOn) return null;
  const { messages, order } = session.store.getState().data;
  const held = order.flatMap((id) => messages.get(id) ?? []);
  const rows = new RowMaker().make(held, false, { grouped: true, dayOf: dayKey });
  return createPortal(
    <main className="print-sheet bg-bg1 text-text" data-theme="light">
      <h1 className="text-[20px] font-semibold">{chat?.title}</h1>
      {chat && (
        <p className="mt-1 mb-6 text-muted">
          {chat.owner.name || chat.owner.username}, <Moment at={chat.created_at} />
        </p>
      )}
      {rows.map((row) => (
        <article key={row.key} className="break-inside-auto pb-3" inert>
          <RowView row={row} />
        </article>
      ))}
    </main>,
    document.body,
  );
}
