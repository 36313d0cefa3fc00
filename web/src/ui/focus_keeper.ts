/**
 * Where the focus goes when what had it is gone: a row that was deleted, a button that can no longer be pressed. Browsers
 * give it to the page, from where keys and screen readers begin at the top again. Here the neighbour gets it, or, when a
 * dialog went away together with what opened it, the neighbour of that.
 */
const FOCUSABLE = "a[href], button, input, select, textarea, summary, [tabindex]:not([tabindex='-1'])";
/** Beyond these nobody looks for the place again. */
const BOUNDS = "main, nav, aside, [role=dialog], body";
const REMEMBERED = 6;
// A button that is busy comes back after a moment, or not at all.
const BUSY_MS = 400;

interface Step {
  node: Element;
  parent: Element;
  index: number;
}

/** The way from an element that had the focus up to the page. */
function wayOf(element: Element): Step[] {
  const way: Step[] = [];
  for (let node = element; node.parentElement; node = node.parentElement) {
    way.push({ node, parent: node.parentElement, index: [...node.parentElement.children].indexOf(node) });
  }
  return way;
}

/** The page itself, or the menu or dialog that lies over it. */
const layerOf = (way: readonly Step[] | undefined) => way?.find((step) => step.parent === document.body)?.node;

function canHave(element: Element): element is HTMLElement {
  return (
    element instanceof HTMLElement &&
    element.isConnected &&
    !element.matches(":disabled") &&
    !element.closest("[inert]") &&
    element.checkVisibility({ visibilityProperty: true })
  );
}

function within(element: Element): HTMLElement[] {
  return [element, ...element.querySelectorAll(FOCUSABLE)].filter(
    (one): one is HTMLElement => one.matches(FOCUSABLE) && canHave(one),
  );
}

/** What stands where it stood: the row that moved up, else the one above; in it, the button of the same place. */
function neighbourOf(way: readonly Step[]): HTMLElement | null {
  const from = way.findIndex((step) => step.parent.isConnected);
  const lost = way[from];
  const element = way[0]?.node;
  if (!lost || !element || lost.parent === document.body) return null;
  const place = [...lost.node.querySelectorAll(FOCUSABLE)].indexOf(element);
  for (const { parent, index } of way.slice(from)) {
    const children = [...parent.children];
    for (const [at, child] of [...children.slice(index), ...children.slice(0, index).reverse()].entries()) {
      // Rows of a list are alike.
      const isAlike = child.tagName === lost.node.tagName && child.childElementCount === lost.node.childElementCount;
      const same = isAlike ? child.querySelectorAll(FOCUSABLE)[place] : undefined;
      const isBefore = at >= children.length - index;
      const best = same && canHave(same) ? same : within(child).at(isBefore ? -1 : 0);
      if (best) return best;
    }
    if (parent.matches(BOUNDS)) return null;
  }
  return null;
}

/** Begin to look after the focus. Returns what ends it. */
export function keepFocus(): () => void {
  const ways: Step[][] = [];
  let timer: ReturnType<typeof setTimeout> | undefined;

  const check = () => {
    const now = document.activeElement;
    // A dialog takes the focus itself when something in it goes away, which is as good as nowhere.
    const isLost = !now || now === document.body || now.matches("[role=dialog], :disabled");
    if (!isLost) return;
    for (const way of ways) {
      const element = way[0]?.node;
      const next = element && canHave(element) ? element : neighbourOf(way);
      if (next && (!now?.matches("[role=dialog]") || now.contains(next))) {
        next.focus({ preventScroll: true });
        return;
      }
    }
  };
  const observer = new MutationObserver((changes) => {
    const last = ways[0]?.[0]?.node ?? null;
    // A focus that was given up, by a click beside everything or past the end of the page, is nobody's loss.
    const isGone = changes.some((change) => [...change.removedNodes].some((one) => one.contains(last)));
    if (!isGone && !last?.matches(":disabled")) return;
    clearTimeout(timer);
    // Not at once: menus and dialogs give the focus back themselves, where that is still there.
    timer = setTimeout(check, isGone ? 0 : BUSY_MS);
  });
  const note = ({ target }: { target: EventTarget | null }) => {
    if (!(target instanceof HTMLElement) || target.matches("[role=dialog]")) return;
    // Who uses a mouse looks where the mouse is; nothing there has to have the focus.
    const way = target.matches(":focus-visible") ? wayOf(target) : [];
    // One place of each layer is enough: a long way through a menu must not make forget where it was opened.
    if (layerOf(way) === layerOf(ways[0])) ways.shift();
    ways.unshift(way);
    ways.length = Math.min(ways.length, REMEMBERED);
    // Only what holds it is watched: text that arrives elsewhere costs nothing.
    observer.disconnect();
    for (const { parent } of way) observer.observe(parent, { childList: true });
    observer.observe(target, { attributeFilter: ["disabled"] });
  };
  document.addEventListener("focusin", note);
  if (document.activeElement) note({ target: document.activeElement });
  return () => {
    document.removeEventListener("focusin", note);
    observer.disconnect();
    clearTimeout(timer);
  };
}
