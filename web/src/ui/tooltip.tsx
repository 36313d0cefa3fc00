import { cloneElement, type ReactElement, useEffect, useLayoutEffect, useRef, useState } from "react";
import { createPortal } from "react-dom";
import { cx } from "@/ui/cx";

const DELAY_MS = 500;
/** Within this time after a tooltip, the next one appears without a delay. */
const SKIP_MS = 200;
/** The time to move the pointer onto the tooltip. */
const LEAVE_MS = 120;
const GAP_PX = 6;
const EDGE_PX = 8;

type Side = "top" | "bottom" | "left";

/** Return the attributes that give an element a tooltip. One component shows all tooltips, because a page has hundreds. */
export function hint(text: string, keys?: string, side?: Side): Record<string, string> {
  return { "data-hint": text, ...(keys ? { "data-keys": keys } : {}), ...(side ? { "data-side": side } : {}) };
}

interface Props {
  text: string;
  keys?: string;
  side?: Side;
  children: ReactElement<Record<string, unknown>>;
}

/** A tooltip on hover and focus. Escape closes it. */
export function Tooltip({ text, keys, side, children }: Props) {
  return cloneElement(children, hint(text, keys, side));
}

const hinted = (target: EventTarget | null) =>
  target instanceof Element ? target.closest<HTMLElement>("[data-hint]") : null;

/** Shows the tooltips of the whole application; mounted once. */
export function Hints() {
  const [owner, setOwner] = useState<HTMLElement | null>(null);
  useEffect(() => {
    let current: HTMLElement | null = null;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let closedAt = Number.NEGATIVE_INFINITY;
    const show = (element: HTMLElement | null) => {
      clearTimeout(timer);
      if (current && !element) closedAt = performance.now();
      current = element;
      setOwner(element);
    };
    const soon = (element: HTMLElement) => {
      clearTimeout(timer);
      const wait = current || performance.now() - closedAt < SKIP_MS ? 0 : DELAY_MS;
      timer = setTimeout(() => show(element.isConnected ? element : null), wait);
    };
    const over = (event: PointerEvent) => {
      // Touch does not open tooltips.
      if (event.pointerType === "touch") return;
      if (event.target instanceof Element && event.target.closest("[role=tooltip]")) {
        clearTimeout(timer);
        return;
      }
      const element = hinted(event.target);
      if (element && element !== current) soon(element);
      else if (element) clearTimeout(timer);
      else if (current) {
        clearTimeout(timer);
        timer = setTimeout(() => show(null), LEAVE_MS);
      } else clearTimeout(timer);
    };
    const focused = (event: FocusEvent) => {
      const element = hinted(event.target);
      if (element && element === event.target && element.matches(":focus-visible")) show(element);
    };
    const close = () => (current ? show(null) : clearTimeout(timer));
    const key = (event: KeyboardEvent) => event.key !== "Tab" && event.key !== "Shift" && close();
    const scrolled = (event: Event) => {
      if (current && event.target instanceof Node && event.target.contains(current)) show(null);
    };
    const listeners: [string, (event: never) => void][] = [
      ["pointerover", over],
      ["focusin", focused],
      ["focusout", close],
      ["pointerdown", close],
      ["keydown", key],
      ["scroll", scrolled],
    ];
    for (const [name, act] of listeners) document.addEventListener(name, act as EventListener, true);
    return () => {
      clearTimeout(timer);
      for (const [name, act] of listeners) document.removeEventListener(name, act as EventListener, true);
    };
  }, []);
  return owner && createPortal(<Hint owner={owner} />, document.body);
}

function Hint({ owner }: { owner: HTMLElement }) {
  const box = useRef<HTMLDivElement>(null);
  const { hint: text, keys, side } = owner.dataset;
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const at = owner.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = element;
    const above = at.top - GAP_PX - height;
    const below = at.bottom + GAP_PX;
    const fits = side === "bottom" ? below + height <= innerHeight - EDGE_PX : above < EDGE_PX;
    const left = Math.min(Math.max(EDGE_PX, at.left + at.width / 2 - width / 2), innerWidth - EDGE_PX - width);
    const isLeft = side === "left" && at.left - GAP_PX - width >= EDGE_PX;
    element.style.left = `${isLeft ? at.left - GAP_PX - width : left}px`;
    element.style.top = `${isLeft ? at.top + (at.height - height) / 2 : fits ? below : above}px`;
  }, [owner, side]);
  const isName = owner.getAttribute("aria-label") === text;
  useEffect(() => {
    // Screen readers read the name anyway; only additional text is announced.
    if (isName) return;
    owner.setAttribute("aria-describedby", "hint");
    return () => owner.removeAttribute("aria-describedby");
  }, [owner, isName]);
  return (
    <div
      ref={box}
      id="hint"
      role="tooltip"
      className={cx(
        "pop-in fixed z-50 flex max-w-80 items-center gap-2 rounded-md bg-text px-2 py-1 text-small break-words whitespace-pre-wrap text-bg1 shadow-pop",
        // In a narrow list the tooltip would cover the buttons of the next row.
        isName && "pointer-events-none",
      )}
    >
      {text}
      {keys && <kbd className="font-sans opacity-70">{keys}</kbd>}
    </div>
  );
}
