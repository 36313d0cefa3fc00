import { queryOptions, useQuery } from "@tanstack/react-query";
import { createStore } from "zustand/vanilla";
import { getMe, getVersion, logout } from "@/api/account";
import { isStatus } from "@/api/errors";
import { get, listen } from "@/api/http";
import { forgetReasons } from "@/api/reasons";
import { forgetSessionKey, onSessionKey } from "@/api/session_key";
import type { Me, SetupStatus } from "@/api/types.gen";
import { forgetSession, reconnectSessions } from "@/state/chat_sessions";
import { queryClient } from "@/state/queries";
import { startWatch } from "@/state/watch";

export const meQuery = queryOptions({ queryKey: ["me"], queryFn: getMe, staleTime: 5 * 60_000, retry: false });
export const setupQuery = queryOptions({
  queryKey: ["setup"],
  queryFn: () => get<SetupStatus>("/setup"),
  staleTime: 60_000,
});
export const versionQuery = queryOptions({ queryKey: ["version"], queryFn: getVersion, staleTime: 5 * 60_000 });

/** The build that this page was made of; empty during development. Asked for late: tests load this without a page. */
export function ownBuild(): string {
  return document.querySelector<HTMLMetaElement>('meta[name="rookery-build"]')?.content ?? "";
}

interface Session {
  /** The session ended while the page was open: it is asked for over the page. */
  signedOut: boolean;
  /** The server has another build than this page. */
  newBuild: boolean;
}

export const session = createStore<Session>(() => ({ signedOut: false, newBuild: false }));

/** Hear of what any answer may bring. */
export function followAnswers(): void {
  listen({
    // Before somebody was known, the routes lead to the login page by themselves.
    signedOut: () => !isLeaving && queryClient.getQueryData(meQuery.queryKey) && session.setState({ signedOut: true }),
    build: (id) => !!ownBuild() && id !== ownBuild() && session.setState({ newBuild: true }),
  });
}

/** Hear that another tab has signed out, or in as somebody. */
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

/** The same person has signed in again: go on where the page was. */
export function resume(): void {
  session.setState({ signedOut: false });
  startWatch();
  reconnectSessions();
  void queryClient.invalidateQueries();
}

/** Who is signed in. Only below the guard of the shell, which has waited for it. */
export function useSelf(): Me {
  const { data } = useQuery(meQuery);
  if (!data) throw new Error("Nobody is signed in.");
  return data;
}

/** Whether the server has a chapter of the API; false until it is known. */
export function useFeature(name: string): boolean {
  const { data } = useQuery(versionQuery);
  return data?.features.includes(name) ?? false;
}

/** End the session, and forget everything that this browser holds of the person. */
export async function signOut(): Promise<void> {
  await logout().catch((error: unknown) => {
    // The session was over already.
    if (!isStatus(error, 401)) throw error;
  });
  leave();
}

let isLeaving = false;

/** Go to the login page, and forget everything that this browser holds of the person. */
export function leave(): void {
  isLeaving = true;
  forgetSession();
  forgetReasons();
  forgetSessionKey();
  for (const key of Object.keys(localStorage)) if (key.startsWith("rookery.draft")) localStorage.removeItem(key);
  // Last of all: what is shown until the next page is there must not ask who is signed in.
  window.addEventListener("pagehide", () => queryClient.clear(), { once: true });
  location.assign("/login");
}
