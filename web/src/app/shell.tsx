import { useMutation } from "@tanstack/react-query";
import { Eye, Info, TriangleAlert } from "lucide-react";
import { type CSSProperties, type ReactNode, Suspense } from "react";
import { Link, Outlet, useLocation } from "react-router";
import { useStore } from "zustand";
import { dismissAccessNotice } from "@/api/account";
import { sentence } from "@/api/errors";
import { useNotifications } from "@/app/notifications";
import { Shortcuts } from "@/app/shortcuts";
import { SkipLinks } from "@/app/skip_links";
import { noticeOf } from "@/chat/admin_accesses";
import { Sidebar } from "@/features/sidebar/sidebar";
import { layout, setLayout } from "@/state/diff_layout";
import { meQuery, session, useSelf } from "@/state/login_session";
import { queryClient } from "@/state/queries";
import { Button } from "@/ui/button";
import { cx } from "@/ui/cx";
import { lazyPart } from "@/ui/lazy_part";
import { Moment } from "@/ui/relative_time";
import { Resizer } from "@/ui/resizer";
import { toast } from "@/ui/toast";
import { Loading } from "./login_guard";
import { usePageTitle } from "./page_title";

// Rendered with the page, so that it is loaded right after it and not when it is opened.
const Palette = lazyPart(async () => (await import("@/features/palette/palette")).Palette);
const SignInDialog = lazyPart(async () => (await import("@/features/login/sign_in_dialog")).SignInDialog);

/** The layout of all pages for signed-in users: the chat list, the page, and dialogs and banners. */
export function Shell() {
  const { sidebarWidth, sidebarOpen } = useStore(layout);
  // A small screen shows one pane. The list is a history entry, so that the back button closes it.
  const listOpen = (useLocation().state as { list?: boolean } | null)?.list === true;
  usePageTitle();
  useNotifications();
  return (
    <div className="flex h-dvh flex-col bg-bg1">
      <SkipLinks />
      <NewBuild />
      <ClearBanner />
      <AccessBanner />
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
      </Suspense>
      <Shortcuts />
      <SignInAgain />
    </div>
  );
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

/** A line above the page. On small screens its buttons are below the text. */
function Banner({ icon, children }: { icon: ReactNode; children: ReactNode }) {
  return (
    <div
      role="status"
      className="flex items-center gap-2 border-b border-line bg-bg2 px-4 py-1.5 sm:justify-center [&>svg]:size-4 [&>svg]:shrink-0"
    >
      {icon}
      <div className="flex min-w-0 flex-wrap items-center gap-x-3 gap-y-1.5">{children}</div>
    </div>
  );
}

/** The banner shown after the server was updated. The user decides when to reload. */
function NewBuild() {
  const isNew = useStore(session, (state) => state.newBuild);
  if (!isNew) return null;
  return (
    <Banner icon={<Info aria-hidden className="text-accent" />}>
      <span>There is a new version of Rookery.</span>
      <Button size="small" onClick={() => location.reload()}>
        Reload
      </Button>
    </Banner>
  );
}

/** The notice about accesses by administrators since the last one was dismissed. */
function AccessBanner() {
  const notice = useSelf().access_notice;
  const dismiss = useMutation({
    mutationFn: dismissAccessNotice,
    onSuccess: () => queryClient.invalidateQueries({ queryKey: meQuery.queryKey }),
    onError: (error) => toast(sentence(error), { kind: "error" }),
  });
  if (!notice) return null;
  return (
    <Banner icon={<Eye aria-hidden className="text-warn" />}>
      <span>
        {noticeOf(notice)}{" "}
        <span className="text-muted">
          <Moment at={notice.last_at} />
        </span>
      </span>
      <span className="flex items-center gap-3">
        <Link to="/settings/profile#accesses" className="text-accent underline">
          Details
        </Link>
        <Button size="small" disabled={dismiss.isPending} onClick={() => dismiss.mutate(notice.through)}>
          Dismiss
        </Button>
      </span>
    </Banner>
  );
}

/** The warning to administrators that the server is used over an unencrypted connection. */
function ClearBanner() {
  if (!useSelf().warnings?.includes("in_the_clear")) return null;
  return (
    <Banner icon={<TriangleAlert aria-hidden className="text-warn" />}>
      <span>
        This server does not use https, so others on the network can read passwords and chats. Set{" "}
        <code className="font-mono text-small">tls_cert</code> and <code className="font-mono text-small">tls_key</code>
        , or put a proxy with https in front of it.
      </span>
    </Banner>
  );
}
