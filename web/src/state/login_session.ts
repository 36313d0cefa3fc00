import { queryOptions, useQuery } from "@tanstack/react-query";
import { createStore } from "zustand/vanilla";
import { forgetReasons } from "@/api/access_reasons";
import { getMe, getVersion, logout } from "@/api/account";
import { isStatus } from "@/api/errors";
import { get, listen } from "@/api/http";
import { forgetSessionKey, onSessionKey } from "@/api/session_key";
import type { Me, SetupStatus } from "@/api/types.gen";
import { forgetSession, reconnectSessions } from "@/state/chat_sessions";
import { queryClient } from "@/state/queries";
import { startWatch } from "./chat_list_stream";

export const meQuery = queryOptions({ queryKey: ["me"], queryFn: getMe, staleTime: 5 * 60_000, retry: false });
export const setupQuery = queryOptions({
  queryKey: ["setup"],
  queryFn: () => get<SetupStatus>("/setup"),
  staleTime: 60_000,
});
export const versionQuery = queryOptions({ queryKey: ["version"], queryFn: getVersion, staleTime: 5 * 60_000 });

/** Return the build of this page; empty during development. A function, because tests load this module without a page. */
export function ownBuild(): string {
  return document.querySelector<HTMLMetaElement>('meta[name="rookery-build"]')?.content ?? "";
}

interface Session {
  /** The session ended while the page was open; the sign-in dialog is shown. */
  signedOut: boolean;
  /** The server has a different build than this page. */
  newBuild: boolean;
}

export const session = createStore<Session>(() => ({ signedOut: false, newBuild: false }));

/** Handle events that any response may report. */
export function followAnswers(): void {
  listen({
    // Before the first login, the routes redirect to the login page.
    signedOut: () => !isLeaving && queryClient.getQueryData(meQuery.queryKey) && session.setState({ signedOut: true }),
    build: (id) => !!ownBuild() && id !== ownBuild() && session.setState({ newBuild: true }),
  });
}

/** Handle a sign-in or sign-out in another tab. */
export function followSessionKey(): void {
  onSessionKey((key) => {
    const known = queryClient.getQueryData(meQuery.queryKey);
    if (!known) return;
    if (key === null) {
      leave();
      return;
    }
    getMe().then(
      (me) => {
        if (me.id !== known.id) location.assign("/");
        else if (session.getState().signedOut) resume();
      },
      () => {},
    );
  });
}

/** Continue after the same user has signed in again. */
export function resume(): void {
  session.setState({ signedOut: false });
  startWatch();
  reconnectSessions();
  void queryClient.invalidateQueries();
}

/** Return the signed-in user. Only for components inside `Guarded`, which waits for it. */
export function useSelf(): Me {
  const { data } = useQuery(meQuery);
  if (!data) throw new Error("No user is signed in.");
  return data;
}

/** Return the features of the server, which are the tags of its API; empty until they are known. */
export function useFeatures(): readonly string[] {
  return useQuery(versionQuery).data?.features ?? [];
}

export function useFeature(name: string): boolean {
  return useFeatures().includes(name);
}

/** Sign out, and delete all data of the user in this browser. */
export async function signOut(): Promise<void> {
  await logout().catch((error: unknown) => {
    // The session has already ended.
    if (!isStatus(error, 401)) throw error;
  });
  leave();
}

let isLeaving = false;

/** Go to the login page, and delete all data of the user in this browser. */
export function leave(): void {
  isLeaving = true;
  forgetSession();
  forgetReasons();
  forgetSessionKey();
  for (const key of Object.keys(localStorage)) if (key.startsWith("rookery.draft")) localStorage.removeItem(key);
  // Last, because the current page needs the user until the next page is loaded.
  window.addEventListener("pagehide", () => queryClient.clear(), { once: true });
  location.assign("/login");
}
