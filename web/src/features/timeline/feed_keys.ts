/**
 * Move the focus to the next or previous article with the page keys, as the ARIA feed pattern requires. Only if the
 * article was focused by the keyboard: after a click, the page keys scroll.
 */
export function walksFeed(key: string, from: EventTarget): boolean {
  const step = key === "PageDown" ? "nextElementSibling" : key === "PageUp" ? "previousElementSibling" : null;
  if (step === null || !(from instanceof HTMLElement) || from.tagName !== "ARTICLE") return false;
  const next = from[step];
  if (!from.matches(":focus-visible") || !(next instanceof HTMLElement) || next.tagName !== "ARTICLE") return false;
  next.focus();
  return true;
}

/** Focus the newest row. */
export function focusNewest(): void {
  const rows = document.querySelectorAll<HTMLElement>("[data-rows] > article");
  rows[rows.length - 1]?.focus();
}
