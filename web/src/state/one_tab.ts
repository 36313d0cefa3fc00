const HELD_MS = 2_000;

/**
 * Run it in one of the tabs that want to, after `turnMs`: whoever has the shorter wait comes first. The lock is held
 * long enough for all others to find it taken.
 */
export async function inOneTab(name: string, turnMs: number, run: () => void): Promise<void> {
  // Where a page is not served securely there are no locks.
  if (!navigator.locks) return run();
  if (turnMs > 0) await passed(turnMs);
  await navigator.locks.request(name, { ifAvailable: true }, async (lock) => {
    if (!lock) return;
    run();
    await passed(HELD_MS);
  });
}

const passed = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));
