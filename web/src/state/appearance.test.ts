// @vitest-environment happy-dom
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { appearance, DEFAULTS, loadAppearance, readAppearance, saveDisplay } from "@/state/appearance";
import { keys, queryClient } from "@/state/queries";
import { later } from "@/testing/chat_page";

const says = (display: object) => Response.json({ display, compaction_thresholds: {} });

beforeEach(() => {
  queryClient.clear();
  appearance.setState(DEFAULTS, true);
});
afterEach(() => vi.unstubAllGlobals());

test("only what is known and of the right kind is taken over", () => {
  const found = readAppearance({ theme: "dark", code_size: "16", notify_done: false, unknown: 1 });

  expect(found).toEqual({ ...DEFAULTS, theme: "dark", notify_done: false });
  expect(readAppearance(null)).toEqual(DEFAULTS);
});

test("a choice that is made while the settings are loaded is not undone by them", async () => {
  const load = later();
  vi.stubGlobal("fetch", async (_: string, init: RequestInit = {}) =>
    init.method === "PATCH" ? says({ theme: "dark", density: "compact" }) : load.answer,
  );
  const loading = loadAppearance().catch(() => {});

  const saving = saveDisplay({ theme: "dark" });
  expect(appearance.getState().theme).toBe("dark");
  await load.give(says({ theme: "light", density: "compact" }));
  await Promise.all([loading, saving]);

  expect(appearance.getState()).toMatchObject({ theme: "dark", density: "compact" });
  expect(queryClient.getQueryData(keys.preferences)).toMatchObject({ display: { theme: "dark" } });
});

test("the answer to an earlier choice does not undo a later one", async () => {
  const first = later();
  const answers = [first.answer, Promise.resolve(says({ theme: "dark", density: "compact" }))];
  vi.stubGlobal("fetch", async () => answers.shift());
  queryClient.setQueryData(keys.preferences, { display: {}, compaction_thresholds: {} });

  const saving = saveDisplay({ theme: "dark" });
  await saveDisplay({ density: "compact" });
  await first.give(says({ theme: "dark" }));
  await saving;

  expect(appearance.getState()).toMatchObject({ theme: "dark", density: "compact" });
});

test("a choice that is refused is taken back", async () => {
  vi.stubGlobal("fetch", async () => Response.json({ error: { code: "invalid", message: "No." } }, { status: 400 }));
  queryClient.setQueryData(keys.preferences, { display: { theme: "light" }, compaction_thresholds: {} });
  appearance.setState({ theme: "light" });

  await expect(saveDisplay({ theme: "dark" })).rejects.toThrow();

  expect(appearance.getState().theme).toBe("light");
  expect(queryClient.getQueryData(keys.preferences)).toMatchObject({ display: { theme: "light" } });
});
