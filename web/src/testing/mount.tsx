/** Rendering of components in tests without a browser. */
import { act, type ReactNode } from "react";
import { createRoot } from "react-dom/client";

(globalThis as { IS_REACT_ACT_ENVIRONMENT?: boolean }).IS_REACT_ACT_ENVIRONMENT = true;

export interface Mounted {
  element: HTMLElement;
  text: () => string;
  show: (node: ReactNode) => void;
  unmount: () => void;
}

export function mount(node: ReactNode): Mounted {
  const element = document.createElement("div");
  document.body.append(element);
  const root = createRoot(element);
  act(() => root.render(node));
  return {
    element,
    text: () => element.textContent ?? "",
    show: (next) => act(() => root.render(next)),
    unmount: () => {
      act(() => root.unmount());
      element.remove();
    },
  };
}
