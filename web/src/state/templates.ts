import { useQuery } from "@tanstack/react-query";
import { listTemplates } from "@/api/workspaces";
import { useFeature } from "@/state/session";

/** Return the templates of this server. They are loaded only if `enabled`. */
export function useTemplates({ enabled = true }: { enabled?: boolean } = {}) {
  const isThere = useFeature("workspaces");
  return useQuery({ queryKey: ["templates"], queryFn: listTemplates, retry: false, enabled: enabled && isThere });
}

interface Startable {
  enabled: boolean;
  unavailable: string | null;
}

/** Return the server's reason why no workspace can be started; null if some can, or if it is unknown. */
export function whyNone(templates: readonly Startable[] | undefined): string | null {
  const offered = (templates ?? []).filter((one) => one.enabled);
  return offered.every((one) => one.unavailable) ? (offered[0]?.unavailable ?? null) : null;
}
