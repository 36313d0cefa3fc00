import { useStore } from "zustand";
import { createStore } from "zustand/vanilla";
import { getPreferences, patchPreferences } from "@/api/account";
import type { PreferencesView } from "@/api/types.gen";
import { keys, queryClient } from "@/state/queries";

/** How the page looks and sounds. It follows the user by `display` of their settings; a copy is kept for the next start. */
export interface Appearance {
  theme: "system" | "light" | "dark";
  density: "comfortable" | "compact";
  code_size: number;
  motion: "system" | "reduced";
  announce: "off" | "end" | "sentence";
  shortcuts: boolean;
  notify_desktop: boolean;
  notify_sound: boolean;
  notify_done: boolean;
  notify_failed: boolean;
  notify_needs: boolean;
}

export const DEFAULTS: Appearance = {
  theme: "system",
  density: "comfortable",
  code_size: 13,
  motion: "system",
  announce: "end",
  shortcuts: true,
  notify_desktop: false,
  notify_sound: false,
  notify_done: true,
  notify_failed: true,
  notify_needs: true,
};

const KEY = "rookery.appearance";
// Read by theme.js before the first paint.
const THEME_KEY = "rookery.theme";

/** Only what is known and of the right kind: other versions of the page may have written it. */
export function readAppearance(given: unknown): Appearance {
  const found: Record<string, unknown> = { ...DEFAULTS };
  if (typeof given === "object" && given !== null) {
    for (const [name, value] of Object.entries(given)) {
      if (name in DEFAULTS && typeof value === typeof found[name]) found[name] = value;
    }
  }
  return found as unknown as Appearance;
}

function stored(): Appearance {
  try {
    return readAppearance(JSON.parse(localStorage.getItem(KEY) ?? "{}"));
  } catch {
    return DEFAULTS;
  }
}

export const appearance = createStore<Appearance>(stored);
export const useAppearance = <T>(select: (state: Appearance) => T): T => useStore(appearance, select);

let newest = 0;

/** Change members of `display`, on the page at once and on the server. A refusal puts the former ones back. */
export async function saveDisplay(change: Record<string, unknown>): Promise<void> {
  newest += 1;
  const mine = newest;
  const shown = appearance.getState();
  appearance.setState(readAppearance({ ...shown, ...change }), true);
  // What is being loaded was asked for before, and would undo it.
  await queryClient.cancelQueries({ queryKey: keys.preferences });
  const before = queryClient.getQueryData<PreferencesView>(keys.preferences);
  if (before) {
    const display = { ...before.display, ...change };
    queryClient.setQueryData<PreferencesView>(keys.preferences, { ...before, display });
  }
  try {
    const saved = await patchPreferences({ display: change });
    if (mine !== newest) return;
    queryClient.setQueryData(keys.preferences, saved);
    appearance.setState(readAppearance(saved.display), true);
  } catch (error) {
    const isNewest = mine === newest;
    if (isNewest) appearance.setState(shown, true);
    // What was chosen since must not be undone with it.
    if (isNewest && before) queryClient.setQueryData(keys.preferences, before);
    else loadAppearance().catch(() => {});
    throw error;
  }
}

/** Take over what the user chose elsewhere. */
export async function loadAppearance(): Promise<void> {
  const { display } = await queryClient.fetchQuery({ queryKey: keys.preferences, queryFn: getPreferences });
  appearance.setState(readAppearance(display), true);
}

function apply(state: Appearance): void {
  const root = document.documentElement;
  const dark =
    state.theme === "dark" || (state.theme === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
  root.dataset.theme = dark ? "dark" : "light";
  root.dataset.density = state.density;
  root.dataset.motion = state.motion;
  if (state.motion === "reduced") stopEndless();
  root.style.setProperty("--code-size", `${state.code_size}px`);
  try {
    localStorage.setItem(KEY, JSON.stringify(state));
    localStorage.setItem(THEME_KEY, state.theme);
  } catch {
    // Without storage the choice comes back from the server.
  }
}

/** What turns or pulses without end is not stopped by styles. */
function stopEndless(): void {
  for (const motion of document.getAnimations?.() ?? []) {
    if (motion.effect?.getTiming().iterations === Number.POSITIVE_INFINITY) motion.cancel();
  }
}

/** Keep the page as it was chosen; once, at the start. */
export function followAppearance(): void {
  apply(appearance.getState());
  appearance.subscribe(apply);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => apply(appearance.getState()));
}
