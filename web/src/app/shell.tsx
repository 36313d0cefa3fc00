import { type CSSProperties, Suspense, useEffect } from "react";
import { Outlet, useLocation, useNavigate } from "react-router";
import { useStore } from "zustand";
import { useNotifications } from "@/app/notifications";
import { SkipLinks } from "@/app/skip_links";
import { Sidebar } from "@/features/sidebar/sidebar";
import { layout, setLayout } from "@/state/diff_layout";
import { session } from "@/state/login_session";
import { cx } from "@/ui/cx";
import { lazyPart } from "@/ui/lazy_part";
import { Resizer } from "@/ui/resizer";
import { Loading } from "./login_guard";
import { usePageTitle } from "./page_title";

// Loaded right after the page: few users have a banner.
const Banners = lazyPart(async () => (await import("@/app/banners")).Banners);
// Rendered with the page, so that it is loaded right after it and not when it is opened.
const Palette = lazyPart(async () => (await import("@/features/palette/palette")).Palette);
const Shortcuts = lazyPart(async () => (await import("@/app/shortcuts")).Shortcuts);
const SignInDialog = lazyPart(async () => (await import("@/features/login/sign_in_dialog")).SignInDialog);

/** The layout of all pages for signed-in users: the chat list, the page, and dialogs and banners. */
export function Shell() {
  const { sidebarWidth, sidebarOpen } = useStore(layout);
  // A small screen shows one pane. The list is a history entry, so that the back button closes it.
  const listOpen = (useLocation().state as { list?: boolean } | null)?.list === true;
  useEscapeFromList(listOpen);
  usePageTitle();
  useNotifications();
  return (
    <div className="flex h-dvh flex-col bg-bg1">
      <SkipLinks />
      <Suspense>
        <Banners />
      </Suspense>
      <div className="flex min-h-0 flex-1">
        <nav
          aria-label="Chats"
          style={{ "--sidebar": `${sidebarWidth}px` } as CSSProperties}
          className={cx(
            "min-h-0 shrink-0 flex-col border-r border-line bg-bg2 md:w-(--sidebar)",
            listOpen ? "flex w-full" : "hidden",
            sidebarOpen ? "md:flex" : "md:hidden",
          )}
        >
          <Sidebar />
        </nav>
        {sidebarOpen && (
          <Resizer
            label="Width of the list"
            value={sidebarWidth}
            min={200}
            max={420}
            initial={280}
            onChange={(width) => setLayout({ sidebarWidth: width })}
            className="hidden md:block"
          />
        )}
        <main
          id="main"
          tabIndex={-1}
          className={cx("min-h-0 min-w-0 flex-1 flex-col outline-none md:flex", listOpen ? "hidden" : "flex")}
        >
          <Suspense fallback={<Loading />}>
            <Outlet />
          </Suspense>
        </main>
      </div>
      <Suspense>
        <Palette />
        <Shortcuts />
      </Suspense>
      <SignInAgain />
    </div>
  );
}

/** Escape closes the chat list where it covers the page. */
function useEscapeFromList(isOpen: boolean): void {
  const navigate = useNavigate();
  useEffect(() => {
    if (!isOpen) return;
    const onKeyDown = (event: KeyboardEvent) => {
      if (event.key !== "Escape" || event.defaultPrevented || !matchMedia("(width < 48rem)").matches) return;
      if (!document.querySelector("[role=dialog], [role=menu]")) void navigate(-1);
    };
    window.addEventListener("keydown", onKeyDown);
    return () => window.removeEventListener("keydown", onKeyDown);
  }, [isOpen, navigate]);
}

/** The sign-in dialog, loaded when a session has ended. */
function SignInAgain() {
  const isOver = useStore(session, (state) => state.signedOut);
  return (
    isOver && (
      <Suspense>
        <SignInDialog />
      </Suspense>
    )
  );
}
