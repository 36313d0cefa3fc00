/** The live state of a chat's repositories. Only for the owner; each stream uses a slot of the workspace agent. */
import { useEffect, useMemo } from "react";
import { useStore } from "zustand";
import { createStore } from "zustand/vanilla";
import type { RepositoryState } from "@/api/types.gen";
import { Connection, type ConnectionState, type Host, INITIAL_CONNECTION } from "./stream_connection";

export interface GitState {
  repositories: readonly RepositoryState[];
  /** Whether the state has been received. It may be outdated. */
  isKnown: boolean;
  conn: ConnectionState;
}

const NOTHING: GitState = { repositories: [], isKnown: false, conn: INITIAL_CONNECTION };

/** Merge updates into the list of repositories, in the order in which they were first seen. */
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
        // The first event contains all repositories.
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

  /** Request a refresh, or reconnect if the connection is lost. */
  refresh(): void {
    if (!this.connection.send({ type: "refresh" })) this.connection.connect();
  }
}

/** Follow the repositories of a chat while the component is mounted and the workspace runs. */
export function useGit(chatId: string, canAsk: boolean): GitState & { refresh: () => void } {
  const follower = useMemo(() => new GitFollower(chatId), [chatId]);
  useEffect(() => (canAsk ? follower.open() : undefined), [follower, canAsk]);
  const state = useStore(follower.store);
  return { ...state, refresh: () => follower.refresh() };
}
