import { createStore } from "zustand/vanilla";

/** Display options for diffs. */
export interface DiffLook {
  split: boolean;
  wraps: boolean;
  /** Whether whitespace changes are hidden. */
  ignoresSpace: boolean;
  /** Whether the list of files is shown. */
  hasList: boolean;
}

/** Sizes and open panes, stored in this browser. */
export interface Layout {
  sidebarWidth: number;
  sidebarOpen: boolean;
  panelWidth: number;
  /** The collapsed sections of the chat list. */
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
    // Without storage, the layout is lost when the page is closed.
  }
}
