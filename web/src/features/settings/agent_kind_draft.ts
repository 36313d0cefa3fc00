import type { KindScope } from "@/api/account";
import type { Effort, KindBody, KindView } from "@/api/types.gen";

/** A kind of subagent in the editor. Empty texts mean "not set". */
export interface KindDraft {
  name: string;
  scope: KindScope;
  description: string;
  prompt: string;
  tools: string;
  readOnly: boolean;
  model: string;
  effort: Effort | "";
  minutes: string;
}

export function readKind(kind: KindView | null): KindDraft {
  return {
    name: kind?.name ?? "",
    scope: kind?.source === "deployment" ? "deployment" : "user",
    description: kind?.description ?? "",
    prompt: kind?.prompt ?? "",
    tools: kind?.tools?.join(" ") ?? "",
    readOnly: kind?.read_only ?? false,
    model: kind?.model_config_id ?? "",
    effort: kind?.reasoning_effort ?? "",
    minutes: kind?.max_minutes ? String(kind.max_minutes) : "",
  };
}

export function writeKind(draft: KindDraft): KindBody {
  const tools = draft.tools.split(/[\s,]+/).filter(Boolean);
  return {
    description: draft.description.trim(),
    prompt: draft.prompt,
    tools: tools.length > 0 ? tools : null,
    read_only: draft.readOnly,
    model_config_id: draft.model || null,
    reasoning_effort: draft.effort || null,
    max_minutes: draft.minutes.trim() ? Number(draft.minutes) : null,
  };
}
