import { useQuery } from "@tanstack/react-query";
import { BookOpen, FileText, Plug } from "lucide-react";
import { sentence } from "@/api/errors";
import type { ChatView, ContextItemView } from "@/api/types.gen";
import { getContext, refreshContext } from "@/api/workspaces";
import { problemOf, titleOf } from "@/chat/workspace_context";
import { sizeOf } from "@/features/timeline/message_files";
import { queryClient } from "@/state/queries";
import { Button } from "@/ui/button";
import { Ago } from "@/ui/relative_time";
import { toast } from "@/ui/toast";

const ICONS: Record<string, typeof FileText> = { skill: BookOpen, mcp_server: Plug, mcp_config: Plug };

/** The captured context of a chat: instructions, skills and MCP servers, with their problems. */
export function ContextPart({ chat }: { chat: ChatView }) {
  const state = chat.context;
  const { data, error } = useQuery({
    // An event of the chat invalidates this query.
    queryKey: ["context", chat.id, chat.workspace_id, state?.dirty_since ?? null],
    queryFn: () => getContext(chat.id),
    retry: false,
  });
  if (error) return <p className="text-muted">{sentence(error)}</p>;
  if (!data) return null;
  return (
    <div className="flex flex-col gap-2">
      {data.dirty_since && (
        <p role="status" className="flex items-center gap-2">
          <span className="min-w-0 flex-1 text-warn">
            Changed in the workspace <Ago at={data.dirty_since} />.
          </span>
          {chat.my_role === "owner" && (
            <Button
              size="small"
              onClick={() => {
                refreshContext(chat.id)
                  .then(() => queryClient.invalidateQueries({ queryKey: ["context", chat.id] }))
                  .catch((problem: unknown) => toast(sentence(problem), { kind: "error" }));
              }}
            >
              Use the new version
            </Button>
          )}
        </p>
      )}
      {data.error && <p className="text-warn">{data.error}</p>}
      {data.items.length === 0 ? (
        <p className="text-muted">No instruction files, skills or MCP servers were found.</p>
      ) : (
        <ul aria-label="Context from the workspace" className="flex flex-col gap-1.5">
          {data.items.map((item) => (
            <Item key={`${item.kind} ${item.source} ${item.name}`} item={item} />
          ))}
        </ul>
      )}
    </div>
  );
}

function Item({ item }: { item: ContextItemView }) {
  const Icon = ICONS[item.kind] ?? FileText;
  const problem = problemOf(item);
  return (
    <li className="flex gap-2">
      <Icon aria-hidden className="mt-0.5 size-4 shrink-0 text-muted" />
      <span className="min-w-0 flex-1">
        <span className="flex gap-2">
          <span className="min-w-0 flex-1 truncate" title={item.source}>
            {titleOf(item)}
          </span>
          {item.size > 0 && <span className="shrink-0 text-muted tabular-nums">{sizeOf(item.size)}</span>}
        </span>
        {item.description && <span className="line-clamp-2 text-small break-words text-muted">{item.description}</span>}
        {problem && <span className="block text-small break-words text-warn">{problem}</span>}
      </span>
    </li>
  );
}
