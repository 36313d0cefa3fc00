import { useStore } from "zustand";
import { createStore } from "zustand/vanilla";
import { getPreferences, patchPreferences } from "@/api/account";
import type { PreferencesView } from "@/api/types.gen";
import { keys, queryClient } from "@/state/queries";

/** The appearance of the page. It is stored in the user's preference `display`, with a copy in this browser. */
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
// theme.js reads it before the first paint.
const THEME_KEY = "rookery.theme";

/** Parse stored settings. Unknown and invalid values are ignored: other versions of the page may have written them. */
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

/** Change `display` settings on the page and on the server. If the server refuses, the earlier values are restored. */
export async function saveDisplay(change: Record<string, unknown>): Promise<void> {
  newest += 1;
  const mine = newest;
  const shown = appearance.getState();
  appearance.setState(readAppearance({ ...shown, ...change }), true);
  // A pending load would overwrite the change with older values.
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
    // Only this change is reverted, not later ones.
    if (isNewest && before) queryClient.setQueryData(keys.preferences, before);
    else loadAppearance().catch(() => {});
    throw error;
  }
}

/** Load the appearance from the user's preferences. */
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
    // Without storage, the settings are loaded from the server at the next start.
  }
}

/** Stop endless animations, which styles cannot stop. */
function stopEndless(): void {
  for (const motion of document.getAnimations?.() ?? []) {
    if (motion.effect?.getTiming().iterations === Number.POSITIVE_INFINITY) motion.cancel();
  }
}

/** Apply the appearance to the page whenever it changes. Called once, at the start. */
export function followAppearance(): void {
  apply(appearance.getState());
  appearance.subscribe(apply);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => apply(appearance.getState()));
}
