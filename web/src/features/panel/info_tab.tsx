import { useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { hasReason } from "@/api/access_reasons";
import { listAccesses } from "@/api/chats";
import { sentence } from "@/api/errors";
import { fileAddress } from "@/api/files";
import type { ChatView } from "@/api/types.gen";
import { visitsOf } from "@/chat/admin_accesses";
import { purposeName } from "@/chat/call_purposes";
import { ContextPart } from "@/features/panel/context_part";
import { ServersPart } from "@/features/panel/mcp_servers";
import { WorkspaceLines } from "@/features/panel/workspace_state";
import { openChatDialog } from "@/features/sidebar/chat_dialogs";
import { downloadFile } from "@/state/file_source";
import { useCost, useKnownModels } from "@/state/queries";
import { Button } from "@/ui/button";
import { DownloadLink } from "@/ui/download_link";
import { compact, dollarsIn } from "@/ui/money";
import { Moment } from "@/ui/relative_time";
import { toast } from "@/ui/toast";

/** The tab with information about a chat: cost, context, files and ids. */
export function InfoTab({ chat }: { chat: ChatView }) {
  const { data: cost } = useCost(chat.id, true);
  const root = chat.root_chat_id ?? chat.id;
  const ofAgents = cost ? cost.total_cost_micros - (cost.by_chat[root]?.cost_micros ?? 0) : 0;
  const shares = [...Object.values(cost?.by_purpose ?? {}), ...Object.values(cost?.by_model ?? {})];
  const dollars = dollarsIn([ofAgents, ...shares.map((one) => one.cost_micros)]);
  const models = useKnownModels();
  const mine = chat.my_role === "owner" && chat.parent_chat_id === null;
  const labels = Object.entries(chat.labels);
  return (
    <div className="flex flex-col gap-6">
      {chat.summary && <Part title="Summary">{chat.summary}</Part>}
      <Part title="Cost">
        {cost && (
          <dl className="grid grid-cols-[1fr_auto] gap-x-4 gap-y-1 tabular-nums [&>dd]:text-right">
            <Line name="Total" value={dollars(cost.total_cost_micros)} />
            {Object.entries(cost.by_purpose).map(([purpose, figures]) => (
              <Line key={purpose} name={purposeName(purpose)} value={dollars(figures.cost_micros)} />
            ))}
            {ofAgents > 0 && <Line name="Part of agents" value={dollars(ofAgents)} />}
            <Line name="Requests" value={String(cost.request_count)} />
            {cost.unpriced_request_count > 0 && (
              <Line name="Requests to models whose price is not set" value={String(cost.unpriced_request_count)} />
            )}
            <Line name="Tokens in" value={compact(cost.tokens.input)} />
            <Line name="Tokens from cache" value={compact(cost.tokens.cache_read)} />
            <Line name="Tokens out" value={compact(cost.tokens.output)} />
            {Object.entries(cost.by_model).map(([id, figures]) => (
              <Line
                key={id}
                name={`Model ${models.find((one) => one.model === id)?.display_name || id}`}
                value={dollars(figures.cost_micros)}
              />
            ))}
          </dl>
        )}
      </Part>
      <Part
        title="Labels"
        action={
          mine && (
            <Button size="small" onClick={() => openChatDialog("labels", chat)}>
              Edit
            </Button>
          )
        }
      >
        {labels.length === 0 ? (
          <p className="text-muted">None.</p>
        ) : (
          <ul className="flex flex-wrap gap-1.5">
            {labels.map(([key, value]) => (
              <li key={key} className="rounded-md bg-bg3 px-2 py-0.5">
                <span className="font-medium">{key}</span>: {value}
              </li>
            ))}
          </ul>
        )}
      </Part>
      {chat.workspace_id !== null && (
        <Part title="From the workspace">
          <WorkspaceLines chat={chat} />
          <ContextPart chat={chat} />
          <ServersPart chat={chat} />
        </Part>
      )}
      {chat.files && chat.files.length > 0 && (
        <Part title="Files">
          <ul className="flex flex-col gap-1">
            {chat.files.map((file) => (
              <li key={file.id} className="flex gap-2">
                <FileLink chatId={chat.id} id={file.id} name={file.name} />
                <span className="text-muted">{compact(file.size_bytes)}B</span>
              </li>
            ))}
          </ul>
        </Part>
      )}
      <Part
        title="Sharing"
        action={
          mine && (
            <Button size="small" onClick={() => openChatDialog("share", chat)}>
              Change
            </Button>
          )
        }
      >
        <p>{chat.shared ? "Shared with others." : "Only you."}</p>
      </Part>
      {chat.my_role === "owner" && <Visits chatId={chat.id} />}
      <Part title="About">
        <dl className="grid grid-cols-[auto_1fr] gap-x-4 gap-y-1 [&>dd]:text-right">
          <Line name="Started" value={<Moment at={chat.created_at} />} />
          <Line name="Last active" value={<Moment at={chat.last_activity_at} />} />
          <Line name="Id" value={<code className="font-mono text-small break-all">{chat.id}</code>} />
        </dl>
      </Part>
    </div>
  );
}

function FileLink({ chatId, id, name }: { chatId: string; id: string; name: string }) {
  const className = "min-w-0 flex-1 truncate text-left text-accent hover:underline";
  if (!hasReason(chatId)) {
    return (
      <DownloadLink path={fileAddress(id)} name={name} className={className}>
        {name}
      </DownloadLink>
    );
  }
  // An administrator's request needs a reason in a header, which a link cannot send.
  return (
    <button
      type="button"
      onClick={() =>
        downloadFile(id, chatId, name).catch((error: unknown) => toast(sentence(error), { kind: "error" }))
      }
      className={className}
    >
      {name}
    </button>
  );
}

/** The accesses of administrators to this chat, with their reasons. Renders nothing if there are none. */
function Visits({ chatId }: { chatId: string }) {
  const { data } = useQuery({ queryKey: ["accesses", chatId], queryFn: () => listAccesses(chatId) });
  const visits = visitsOf(data?.items ?? []);
  if (visits.length === 0) return null;
  return (
    <Part title="Accesses by administrators">
      <ul className="flex flex-col gap-2">
        {visits.map((visit) => (
          <li key={`${visit.at} ${visit.who} ${visit.reason}`}>
            <p className="flex gap-2">
              <span className="min-w-0 flex-1 truncate font-medium">{visit.who}</span>
              <span className="text-muted">
                <Moment at={visit.at} />
              </span>
            </p>
            <p className="break-words text-muted">{visit.reason}</p>
          </li>
        ))}
      </ul>
    </Part>
  );
}

function Part({ title, action, children }: { title: string; action?: ReactNode; children: ReactNode }) {
  return (
    <section>
      <div className="mb-2 flex min-h-7 items-center">
        <h2 className="flex-1 font-semibold">{title}</h2>
        {action}
      </div>
      {children}
    </section>
  );
}

function Line({ name, value }: { name: string; value: ReactNode }) {
  return (
    <>
      <dt className="min-w-0 truncate text-muted">{name}</dt>
      <dd>{value}</dd>
    </>
  );
}
