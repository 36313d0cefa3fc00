import { Suspense, useEffect } from "react";
import { useParams, useSearchParams } from "react-router";
import { isStatus, sentence } from "@/api/errors";
import { HomeLink, NotFoundPage, Problem } from "@/app/problem_page";
import { ConversationPage } from "@/features/conversation/conversation_page";
import { withFile } from "@/features/conversation/open_file";
import { ChatHeader } from "@/features/header/chat_header";
import { LiveDot } from "@/features/header/live_dot";
import { useChat, useMe } from "@/state/queries";
import { Button } from "@/ui/button";
import { lazyPart } from "@/ui/lazy_part";
import { isMac } from "@/ui/modifier_key";

// Only for administrators.
const ReasonPage = lazyPart(async () => (await import("@/features/conversation/reason_page")).ReasonPage);

const Panel = lazyPart(async () => (await import("@/features/panel/panel")).Panel);

// The last open tab of the panel for each chat, until the page is closed.
const tabs = new Map<string, string>();

/** The page of a chat: header, conversation and panel. */
export function ChatPage() {
  const { id = "" } = useParams();
  const chat = useChat(id);
  const { data: me } = useMe();
  const [params, setParams] = useSearchParams();
  const panel = params.get("panel");

  function setPanel(tab: string | null) {
    if (tab) tabs.set(id, tab);
    const next = new URLSearchParams(params);
    if (tab) next.set("panel", tab);
    else for (const name of ["panel", "file", "line", "step"]) next.delete(name);
    setParams(next, { replace: true });
  }

  const togglePanel = () => setPanel(panel ? null : (tabs.get(id) ?? (chat.data?.workspace_id ? "changes" : "info")));

  useEffect(() => {
    function onKeyDown(event: KeyboardEvent) {
      if (!(isMac ? event.metaKey : event.ctrlKey) || event.shiftKey || event.key.toLowerCase() !== "j") return;
      event.preventDefault();
      togglePanel();
    }
    window.addEventListener("keydown", onKeyDown);
    return () => window.removeEventListener("keydown", onKeyDown);
  });

  if (isStatus(chat.error, 404, 400)) return <NotFoundPage />;
  if (isStatus(chat.error, 403) && me?.role === "admin")
    return (
      <Suspense>
        <ReasonPage key={id} chatId={id} />
      </Suspense>
    );
  if (chat.error && !chat.data) {
    return (
      <Problem title="The chat could not be loaded" text={sentence(chat.error)}>
        <Button kind="primary" onClick={() => chat.refetch()}>
          Try again
        </Button>
        <HomeLink />
      </Problem>
    );
  }
  return (
    <div className="relative flex min-h-0 flex-1">
      <div className="flex min-h-0 min-w-0 flex-1 flex-col">
        <ChatHeader
          chat={chat.data}
          live={<LiveDot key={id} chatId={id} />}
          isPanelOpen={panel !== null}
          onPanel={togglePanel}
          onChanges={() => setPanel("changes")}
          onCost={() => setPanel("info")}
        />
        <ConversationPage chatId={id} target={Number(params.get("m")) || null} />
      </div>
      {panel && chat.data && (
        <Suspense>
          <Panel
            chat={chat.data}
            tab={panel}
            onTab={setPanel}
            file={params.get("file")}
            line={Number(params.get("line")) || null}
            onFile={(path) => setParams(withFile(params, path, null), { replace: true })}
            onClose={() => setPanel(null)}
          />
        </Suspense>
      )}
    </div>
  );
}
