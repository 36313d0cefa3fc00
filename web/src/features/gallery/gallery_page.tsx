import { useState } from "react";
import { ConversationContext } from "@/features/conversation/chat_context";
import { AgentGallery, fillAgents } from "@/features/gallery/agent_gallery";
import { DebugGallery } from "@/features/gallery/debug_tab_gallery";
import {
  AGENTS,
  APPROVAL,
  CONNECTIONS,
  DYNAMIC,
  ERRORS,
  FAILURE,
  GALLERY_TOOLS,
  ON_HOLD,
  PROMPT,
  QUESTIONS,
  REMOTE,
  RETRY,
  ROWS,
  SERVERS,
  samplesOf,
  TEXT,
  THOUGHT,
} from "@/features/gallery/samples";
import { ConnectNotice } from "@/features/mcp/connect_notices";
import { needsLogin } from "@/features/mcp/connection";
import { ServerPicker } from "@/features/mcp/server_picker";
import { ServerList, ServerQuestion } from "@/features/panel/mcp_servers";
import { ErrorRow, RetryBanner } from "@/features/timeline/error_row";
import { LiveMarkdown, Markdown } from "@/features/timeline/markdown";
import { ReasoningRow } from "@/features/timeline/reasoning";
import { RowView } from "@/features/timeline/row";
import { PendingRow } from "@/features/timeline/user_row";
import { ApprovalCard } from "@/features/tools/approval_card";
import { ToolGroup } from "@/features/tools/call_group";
import { DynamicCard } from "@/features/tools/client_tool_card";
import { ToolCard } from "@/features/tools/tool_card";
import { ChatSession } from "@/state/chat_session";
import { mcpServersKey } from "@/state/mcp_servers";
import { setOpen } from "@/state/opened_cards";
import { keys, queryClient } from "@/state/queries";
import { Button } from "@/ui/button";

/** Every row and card in every state. Only in test builds. */
export function GalleryPage() {
  const [session] = useState(() => {
    queryClient.setQueryData(keys.agents("gallery"), { agents: AGENTS });
    queryClient.setQueryData(mcpServersKey, { items: CONNECTIONS });
    fillAgents();
    return new ChatSession("gallery");
  });
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
          {ROWS.map((row) => (
            <RowView key={row.key} row={row} />
          ))}
          <ReasoningRow
            id="r1"
            text={THOUGHT}
            startedAt="2026-01-05T10:00:00Z"
            endedAt="2026-01-05T10:00:12Z"
            live={false}
          />
          <ReasoningRow id="r2" text={THOUGHT} startedAt={null} endedAt={null} live />
          <PendingRow id="p1" parts={[{ type: "text", text: PROMPT }]} failed={undefined} />
          <PendingRow id="p2" parts={[{ type: "text", text: PROMPT }]} failed={FAILURE} />
          <ApprovalCard action={APPROVAL} />
          <ApprovalCard action={ON_HOLD} />
          {QUESTIONS.map((action, index) => (
            <ApprovalCard key={index} action={action} />
          ))}
          <ServerQuestion server={SERVERS[0]} workspace="gallery" others={1} />
          <ServerQuestion server={REMOTE} workspace="gallery" others={0} />
          <ServerList servers={SERVERS} workspace="gallery" />
          {CONNECTIONS.filter(needsLogin).map((one) => (
            <ConnectNotice key={one.id} server={one} />
          ))}
          <ServerPicker serverIds={["issues", "docs"]} workspaceId="gallery" onServers={() => {}} />
          <DynamicCard action={DYNAMIC} clockSkew={0} />
          <RetryBanner retry={RETRY} clockSkew={0} />
          {ERRORS.map((error) => (
            <ErrorRow key={error.kind} error={error} queued={2} lastPrompt={() => {}} />
          ))}
          <AgentGallery />
          <DebugGallery />
        </div>
      </div>
    </ConversationContext>
  );
}
