import { createStore } from "zustand/vanilla";

/** How diffs are shown. */
export interface DiffLook {
  split: boolean;
  wraps: boolean;
  /** Changes of space alone are left out. */
  ignoresSpace: boolean;
  /** The list of files above the lines. */
  hasList: boolean;
}

/** Sizes and open panes of this browser. */
export interface Layout {
  sidebarWidth: number;
  sidebarOpen: boolean;
  panelWidth: number;
  /** Sections of the list that were closed. */
  closedSections: string[];
  diff: DiffLook;
  paletteOpen: boolean;
  helpOpen: boolean;
}

const KEY = "rookery.layout";
const START: Layout = {
  sidebarWidth: 280,
  sidebarOpen: true,
  panelWidth: 480,
  closedSections: [],
  diff: { split: false, wraps: false, ignoresSpace: false, hasList: true },
  paletteOpen: false,
  helpOpen: false,
};

function stored(): Partial<Layout> {
  try {
    const { sidebarWidth, sidebarOpen, panelWidth, closedSections, diff } = {
      ...START,
      ...JSON.parse(localStorage.getItem(KEY) ?? "{}"),
    } as Layout;
    return { sidebarWidth, sidebarOpen, panelWidth, closedSections, diff: { ...START.diff, ...diff } };
  } catch {
    return {};
  }
}

export const layout = createStore<Layout>(() => ({ ...START, ...stored() }));

export function setLayout(change: Partial<Layout>): void {
  layout.setState(change);
  const { sidebarWidth, sidebarOpen, panelWidth, closedSections, diff } = layout.getState();
  try {
    localStorage.setItem(KEY, JSON.stringify({ sidebarWidth, sidebarOpen, panelWidth, closedSections, diff }));
  } catch {
    // Storage may be full or forbidden; the page then forgets at its end.
  }
}
