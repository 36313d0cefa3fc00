import { useQuery } from "@tanstack/react-query";
import { listTemplates } from "@/api/workspaces";
import { useFeature } from "@/state/session";

/** Templates of this server; `enabled` says whether somebody wants to know now. */
export function useTemplates({ enabled = true }: { enabled?: boolean } = {}) {
  const isThere = useFeature("workspaces");
  return useQuery({ queryKey: ["templates"], queryFn: listTemplates, retry: false, enabled: enabled && isThere });
}

interface Startable {
  enabled: boolean;
  unavailable: string | null;
}

/** Why no workspace at all can be started, in the server's words; null while some can, or nothing is known. */
export function whyNone(templates: readonly Startable[] | undefined): string | null {
  const offered = (templates ?? []).filter((one) => one.enabled);
  return offered.every((one) => one.unavailable) ? (offered[0]?.unavailable ?? null) : null;
}
