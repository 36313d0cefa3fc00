import { useTemplates, whyNone } from "@/state/templates";
import { Commands } from "@/ui/backtick_code";

/** The reason why this server cannot start workspaces, with the command that fixes it. Renders nothing if it can. */
export function NoWorkspaces() {
  const why = whyNone(useTemplates().data?.items);
  if (!why) return null;
  return (
    <p role="status" className="mb-3 rounded-lg border border-warn px-4 py-2 break-words">
      Agents can talk here, but run nothing. <Commands text={why} />
    </p>
  );
}
