import { useLocation } from "react-router";
import { focusNewest } from "@/features/timeline/feed_keys";

const LOOK =
  "sr-only focus:not-sr-only focus:absolute focus:z-50 focus:m-2 focus:rounded-md focus:bg-bg1 focus:p-2 focus:shadow-pop";

/** Skip links: the first Tab stops, which lead past the list to the message box and to the newest message. */
export function SkipLinks() {
  const { pathname } = useLocation();
  const hasComposer = pathname === "/" || pathname.startsWith("/c/");
  return (
    <>
      {hasComposer && (
        <button
          type="button"
          className={LOOK}
          onClick={() => document.querySelector<HTMLElement>("textarea[data-composer]")?.focus()}
        >
          Skip to the message box
        </button>
      )}
      {pathname.startsWith("/c/") && (
        <button type="button" className={LOOK} onClick={focusNewest}>
          Skip to the newest answer
        </button>
      )}
      {!hasComposer && (
        <a href="#main" className={LOOK}>
          Skip to the page
        </a>
      )}
    </>
  );
}
