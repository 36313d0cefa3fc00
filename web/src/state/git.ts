/** What changes in the repositories of a chat, followed live. Only its owner may; it holds a place at the workspace. */
import { useEffect, useMemo } from "react";
import { useStore } from "zustand";
import { createStore } from "zustand/vanilla";
import type { RepositoryState } from "@/api/types.gen";
import { Connection, type ConnectionState, type Host, INITIAL_CONNECTION } from "@/state/connection";

export interface GitState {
  repositories: readonly RepositoryState[];
  /** Something was said since the chat was opened; it may be old by now. */
  isKnown: boolean;
  conn: ConnectionState;
}

const NOTHING: GitState = { repositories: [], isKnown: false, conn: INITIAL_CONNECTION };

/** Repositories after news of some: in the order in which they were first seen. */
export function merged(known: readonly RepositoryState[], news: readonly RepositoryState[]): RepositoryState[] {
  const all = new Map(known.map((one) => [one.root, one]));
  for (const one of news) {
    if (one.removed) all.delete(one.root);
    else all.set(one.root, one);
  }
  return [...all.values()];
}

export class GitFollower {
  readonly store = createStore<GitState>(() => NOTHING);
  private readonly connection: Connection;
  private isFirst = true;

  constructor(chatId: string, host?: Host) {
    this.connection = new Connection(
      {
        path: `/chats/${encodeURIComponent(chatId)}/git`,
        query: () => ({}),
        // The first message is of everything there is.
        onOpen: () => {
          this.isFirst = true;
        },
        onState: (conn) => this.store.setState({ conn }),
        onFrame: (events) => {
          for (const event of events) {
            if (event.type !== "changes") continue;
            const known = this.isFirst ? [] : this.store.getState().repositories;
            this.isFirst = false;
            this.store.setState({ repositories: merged(known, event.repositories), isKnown: true });
          }
        },
      },
      host,
    );
  }

  open(): () => void {
    this.connection.connect();
    return () => this.connection.close();
  }

  /** Look now; a lost connection is made again. */
  refresh(): void {
    if (!this.connection.send({ type: "refresh" })) this.connection.connect();
  }
}

/** The repositories of a chat, followed while the component is there and somebody can answer. */
export function useGit(chatId: string, canAsk: boolean): GitState & { refresh: () => void } {
  const follower = useMemo(() => new GitFollower(chatId), [chatId]);
  useEffect(() => (canAsk ? follower.open() : undefined), [follower, canAsk]);
  const state = useStore(follower.store);
  return { ...state, refresh: () => follower.refresh() };
}
