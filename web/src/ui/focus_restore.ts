/**
 * Restores the focus when the focused element is removed or disabled. Browsers move the focus to the page, so that
 * keyboard users start at the top again. Here the next neighbor gets the focus or, if a dialog closed and its opener no
 * longer exists, a neighbor of the opener.
 */
const FOCUSABLE = "a[href], button, input, select, textarea, summary, [tabindex]:not([tabindex='-1'])";
/** The search for a neighbor ends at these elements. */
const BOUNDS = "main, nav, aside, [role=dialog], body";
const REMEMBERED = 6;
// A busy button is enabled again after a moment, or not at all.
const BUSY_MS = 400;

interface Step {
  node: Element;
  parent: Element;
  index: number;
}

/** Return the ancestors of an element, with its position in each. */
function wayOf(element: Element): Step[] {
  const way: Step[] = [];
  for (let node = element; node.parentElement; node = node.parentElement) {
    way.push({ node, parent: node.parentElement, index: [...node.parentElement.children].indexOf(node) });
  }
  return way;
}

/** Return the layer of an element: the page, or a menu or dialog. */
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

/** Return the element at the position of the removed one: the same button in the next row, else in the previous row. */
function neighborOf(way: readonly Step[]): HTMLElement | null {
  const from = way.findIndex((step) => step.parent.isConnected);
  const lost = way[from];
  const element = way[0]?.node;
  if (!lost || !element || lost.parent === document.body) return null;
  const place = [...lost.node.querySelectorAll(FOCUSABLE)].indexOf(element);
  for (const { parent, index } of way.slice(from)) {
    const children = [...parent.children];
    for (const [at, child] of [...children.slice(index), ...children.slice(0, index).reverse()].entries()) {
      // The rows of a list have the same structure.
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

/**
 * Return whether another element already has the focus of a menu that closed: the chosen entry moved it, or the user did.
 * The menu does not take it back then.
 */
export const isFocusTaken = () => document.activeElement !== null && document.activeElement !== document.body;

/** Start to restore the focus. Return a function that stops it. */
export function restoreFocus(): () => void {
  const ways: Step[][] = [];
  let timer: ReturnType<typeof setTimeout> | undefined;

  const check = () => {
    const now = document.activeElement;
    // A dialog takes the focus itself when its focused element is removed; that counts as lost.
    const isLost = !now || now === document.body || now.matches("[role=dialog], :disabled");
    if (!isLost) return;
    for (const way of ways) {
      const element = way[0]?.node;
      const next = element && canHave(element) ? element : neighborOf(way);
      if (next && (!now?.matches("[role=dialog]") || now.contains(next))) {
        next.focus({ preventScroll: true });
        return;
      }
    }
  };
  const observer = new MutationObserver((changes) => {
    const last = ways[0]?.[0]?.node ?? null;
    // Only a removed or disabled element counts, not a click beside all elements.
    const isGone = changes.some((change) => [...change.removedNodes].some((one) => one.contains(last)));
    if (!isGone && !last?.matches(":disabled")) return;
    clearTimeout(timer);
    // Delayed, because menus and dialogs restore the focus themselves if they can.
    timer = setTimeout(check, isGone ? 0 : BUSY_MS);
  });
  const note = ({ target }: { target: EventTarget | null }) => {
    if (!(target instanceof HTMLElement) || target.matches("[role=dialog]")) return;
    // Only focus by the keyboard is restored.
    const way = target.matches(":focus-visible") ? wayOf(target) : [];
    // One position per layer: moves inside a menu must not displace the position of its opener.
    if (layerOf(way) === layerOf(ways[0])) ways.shift();
    ways.unshift(way);
    ways.length = Math.min(ways.length, REMEMBERED);
    // Only the ancestors are observed, so that changes elsewhere cost nothing.
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
