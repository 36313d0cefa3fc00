import { useState } from "react";
import { ConversationContext } from "@/features/conversation/context";
import { GALLERY_TOOLS, samplesOf } from "@/features/gallery/samples";
import { LiveMarkdown, Markdown } from "@/features/timeline/markdown";
import { ReasoningRow } from "@/features/timeline/reasoning";
import { ErrorRow, RetryBanner } from "@/features/timeline/trouble";
import { PendingRow } from "@/features/timeline/user_row";
import { ToolCard } from "@/features/tools/card";
import { ToolGroup } from "@/features/tools/group";
import { ChatSession } from "@/state/chat_session";
import { setOpen } from "@/state/open_state";
import { Button } from "@/ui/button";

const ERRORS = [
  "overloaded",
  "rate_limit",
  "timeout",
  "auth",
  "missing_key",
  "usage_limit",
  "content_filter",
  "hook_denied",
  "chat_invalid_state",
  "unheard_of",
];
const TEXT =
  "A paragraph with **bold**, `code` and [a link](https://example.org).\n\n```python\nprint(1)\n```\n\n| a | b |\n| - | - |\n| 1 | 2 |\n";

/** Every row and card in every state; only in builds for tests. */
export function GalleryPage() {
  const [session] = useState(() => new ChatSession("gallery"));
  const [opened, setOpened] = useState(false);
  const open = () => {
    for (const name of GALLERY_TOOLS) for (const sample of samplesOf(name)) setOpen(sample.call.id, !opened);
    setOpened(!opened);
  };
  return (
    <ConversationContext
      value={{
        chatId: "gallery",
        session,
        isOwner: true,
        isArchived: false,
        planMode: false,
        sendText: async () => {},
        insertText: () => {},
        editMessage: () => {},
        openModelPicker: () => {},
        openFile: null,
        modelName: () => "Opus",
      }}
    >
      <div className="h-full overflow-y-auto p-6">
        <h1 className="mb-4 text-[20px] font-semibold">Gallery</h1>
        <Button onClick={open}>{opened ? "Close all" : "Open all"}</Button>
        <div className="mx-auto max-w-[48rem] space-y-3">
          {GALLERY_TOOLS.map((name) => (
            <section key={name} aria-label={name} className="space-y-2 pt-4">
              <h2 className="font-mono text-small text-muted">{name}</h2>
              {samplesOf(name).map((sample) => (
                <ToolCard key={sample.title} call={sample.call} active={sample.active} latest={false} />
              ))}
            </section>
          ))}
          <h2 className="pt-4 text-muted">Groups</h2>
          <ToolGroup
            active={false}
            items={["read_file", "edit_files", "execute"].flatMap((name) =>
              samplesOf(name)
                .filter((one) => one.title === "done" || one.title === "failed")
                .map((one) => ({ kind: "tool" as const, call: one.call })),
            )}
          />
          <ToolGroup
            active
            items={["read_file", "execute"].flatMap((name) =>
              samplesOf(name)
                .filter((one) => one.title === "streaming")
                .map((one) => ({ kind: "tool" as const, call: one.call })),
            )}
          />
          <h2 className="pt-4 text-muted">Rows</h2>
          <Markdown text={TEXT} />
          <LiveMarkdown text={`${TEXT}\nand **unfin`} />
          <ReasoningRow
            id="r1"
            text="**The lock** I should look at it."
            startedAt="2026-01-05T10:00:00Z"
            endedAt="2026-01-05T10:00:12Z"
            live={false}
          />
          <ReasoningRow id="r2" text="**The lock** I should look at it." startedAt={null} endedAt={null} live />
          <PendingRow id="p1" parts={[{ type: "text", text: "On its way" }]} failed={undefined} />
          <PendingRow
            id="p2"
            parts={[{ type: "text", text: "Did not get through" }]}
            failed="The server cannot be reached."
          />
          <RetryBanner
            retry={{
              attempt: 3,
              delay_ms: 8000,
              error: "Overloaded",
              kind: "overloaded",
              provider: "Anthropic",
              retrying_at: new Date(Date.now() + 8000).toISOString(),
            }}
            clockSkew={0}
          />
          {ERRORS.map((kind) => (
            <ErrorRow
              key={kind}
              error={{
                kind,
                message: "The provider said no.",
                provider: "Anthropic",
                detail: "detail of the provider",
                status_code: 500,
              }}
              queued={2}
              lastPrompt={() => {}}
            />
          ))}
        </div>
      </div>
    </ConversationContext>
  );
}
