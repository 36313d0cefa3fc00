const HELD_MS = 2_000;

/**
 * Run a function in only one of several tabs, after `turnMs`. The tab with the shortest delay runs it. The lock is held
 * long enough that all other tabs find it taken.
 */
export async function inOneTab(name: string, turnMs: number, run: () => void): Promise<void> {
  // The Web Locks API is available only in secure contexts.
  if (!navigator.locks) return run();
  if (turnMs > 0) await passed(turnMs);
  await navigator.locks.request(name, { ifAvailable: true }, async (lock) => {
    if (!lock) return;
    run();
    await passed(HELD_MS);
  });
}

const passed = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));
