import { useQuery } from "@tanstack/react-query";
import { listTemplates } from "@/api/workspaces";
import { useFeature } from "./login_session";

/** Return the templates of this server. They are loaded only if `enabled`. */
export function useTemplates({ enabled = true }: { enabled?: boolean } = {}) {
  const isThere = useFeature("workspaces");
  return useQuery({
    queryKey: ["templates"],
    queryFn: listTemplates,
    retry: false,
    enabled: enabled && isThere,
    // The server looks again after half a minute, so a fixed machine is noticed without a reload.
    refetchInterval: (query) => (whyNone(query.state.data?.items) ? 30_000 : false),
  });
}

interface Startable {
  enabled: boolean;
  unavailable: string | null;
}

/** Return the server's reason why no workspace of some driver can be started; null if each driver has a usable template. */
export function driverProblem(templates: readonly (Startable & { driver: string })[] | undefined): string | null {
  const all = templates ?? [];
  const found = all.map((one) => whyNone(all.filter((other) => other.driver === one.driver)));
  return found.find(Boolean) ?? null;
}

/** Return the server's reason why no workspace can be started; null if some can, or if it is unknown. */
export function whyNone(templates: readonly Startable[] | undefined): string | null {
  const offered = (templates ?? []).filter((one) => one.enabled);
  return offered.every((one) => one.unavailable) ? (offered[0]?.unavailable ?? null) : null;
}
