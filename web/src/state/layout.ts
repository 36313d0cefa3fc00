import { createStore } from "zustand/vanilla";

/** Sizes and open panes of this browser. */
export interface Layout {
  sidebarWidth: number;
  sidebarOpen: boolean;
  panelWidth: number;
  /** Sections of the list that were closed. */
  closedSections: string[];
  paletteOpen: boolean;
  helpOpen: boolean;
}

const KEY = "rookery.layout";
const START: Layout = {
  sidebarWidth: 280,
  sidebarOpen: true,
  panelWidth: 480,
  closedSections: [],
  paletteOpen: false,
  helpOpen: false,
};

function stored(): Partial<Layout> {
  try {
    const { sidebarWidth, sidebarOpen, panelWidth, closedSections } = {
      ...START,
      ...JSON.parse(localStorage.getItem(KEY) ?? "{}"),
    } as Layout;
    return { sidebarWidth, sidebarOpen, panelWidth, closedSections };
  } catch {
    return {};
  }
}

export const layout = createStore<Layout>(() => ({ ...START, ...stored() }));

export function setLayout(change: Partial<Layout>): void {
  layout.setState(change);
  const { sidebarWidth, sidebarOpen, panelWidth, closedSections } = layout.getState();
  try {
    localStorage.setItem(KEY, JSON.stringify({ sidebarWidth, sidebarOpen, panelWidth, closedSections }));
  } catch {
    // Storage may be full or forbidden; the page then forgets at its end.
  }
}
