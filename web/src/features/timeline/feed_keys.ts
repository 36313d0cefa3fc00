/**
 * Page keys walk from article to article, as in every feed. Only for who came to one by keys: a click into the text
 * focuses it as well, and whoever reads with the mouse turns pages with them.
 */
export function walksFeed(key: string, from: EventTarget): boolean {
  const step = key === "PageDown" ? "nextElementSibling" : key === "PageUp" ? "previousElementSibling" : null;
  if (step === null || !(from instanceof HTMLElement) || from.tagName !== "ARTICLE") return false;
  const next = from[step];
  if (!from.matches(":focus-visible") || !(next instanceof HTMLElement) || next.tagName !== "ARTICLE") return false;
  next.focus();
  return true;
}

/** The newest row that is there, for who wants to begin with it. */
export function focusNewest(): void {
  const rows = document.querySelectorAll<HTMLElement>("[data-rows] > article");
  rows[rows.length - 1]?.focus();
}
