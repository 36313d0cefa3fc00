/** The part of the Web Locks API that the page uses, shared by all tabs of a test. */
export class FakeLocks {
  readonly asked: string[] = [];
  private readonly held = new Set<string>();

  request = async (
    name: string,
    options: { ifAvailable: boolean },
    use: (lock: { name: string } | null) => Promise<void> | undefined,
  ): Promise<void> => {
    if (!options.ifAvailable) throw new Error("Waiting for a lock is not what this page does.");
    this.asked.push(name);
    // A browser responds asynchronously.
    await Promise.resolve();
    if (this.held.has(name)) return use(null);
    this.held.add(name);
    try {
      await use({ name });
    } finally {
      this.held.delete(name);
    }
  };
}
