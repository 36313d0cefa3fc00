import { type ComponentType, type LazyExoticComponent, lazy } from "react";

const FIRST_PAUSE_MS = 1_000;
const LONGEST_PAUSE_MS = 15_000;

/**
 * Load a file of the application. While the server cannot be reached, try again: a lost connection must not replace the page
 * with an error. If the server answers and the file is still missing, it belongs to an older build, and the error counts.
 */
export async function loadPart<T>(load: () => Promise<T>): Promise<T> {
  for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(2 * pause, LONGEST_PAUSE_MS)) {
    try {
      return await load();
    } catch {
      const isReachable = await fetch("/healthz", { cache: "no-store" }).then(
        () => true,
        () => false,
      );
      if (isReachable) return load();
      await new Promise((done) => setTimeout(done, pause));
    }
  }
}

/** A component in a file of its own, which is loaded when it is rendered for the first time. */
// biome-ignore lint/suspicious/noExplicitAny: the properties of a component are contravariant; React's own type is the same.
export function lazyPart<C extends ComponentType<any>>(load: () => Promise<C>): LazyExoticComponent<C> {
  return lazy(async () => ({ default: await loadPart(load) }));
}
