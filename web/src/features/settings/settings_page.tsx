import { Suspense, useEffect, useRef } from "react";
import { Link, Navigate, NavLink, useParams } from "react-router";
import { useFeatures, useSelf } from "@/state/login_session";
import { cx } from "@/ui/cx";
import { Page } from "@/ui/page";
import { Spinner } from "@/ui/spinner";
import { PAGES, type SettingsEntry } from "./page_list";

/** The settings page, with the menu on the left, or above the page on small screens. */
export function SettingsPage() {
  const { page } = useParams();
  const me = useSelf();
  const features = useFeatures();
  const mine = PAGES.filter((one) => !one.roles || one.roles.includes(me.role)).filter(
    (one) => !one.feature || features.includes(one.feature) || one.id === page,
  );
  const current = PAGES.find((one) => one.id === page);
  if (!current) return <Navigate to="/settings/profile" replace />;
  const mayOpen = mine.includes(current);
  const Current = current.component;
  return (
    <Page title={current.title} wide>
      <div className="flex flex-col gap-6 md:flex-row md:gap-10">
        <SettingsMenu pages={mine} current={current.id} />
        <div className="flex min-w-0 flex-1 flex-col gap-8 md:max-w-3xl">
          {mayOpen ? (
            <Suspense fallback={<Spinner />}>
              <Current key={current.id} />
            </Suspense>
          ) : (
            <Forbidden />
          )}
        </div>
      </div>
    </Page>
  );
}

function SettingsMenu({ pages, current }: { pages: SettingsEntry[]; current: string }) {
  const menu = useRef<HTMLElement>(null);
  // On a small screen the menu is a strip that shows only a few entries, so the current one is scrolled into view.
  // biome-ignore lint/correctness/useExhaustiveDependencies: runs when another page is shown
  useEffect(() => {
    // Only the strip: `scrollIntoView` would scroll the page as well, and its beginning would be out of view.
    const strip = menu.current;
    const entry = strip?.querySelector<HTMLElement>("[aria-current]");
    if (strip && entry)
      strip.scrollLeft = entry.offsetLeft - strip.offsetLeft - (strip.clientWidth - entry.offsetWidth) / 2;
  }, [current, pages.length]);
  return (
    <nav
      ref={menu}
      aria-label="Settings"
      className="flex shrink-0 gap-4 overflow-x-auto md:w-44 md:flex-col md:overflow-visible"
    >
      {(["You", "Server"] as const).map((group) => {
        const entries = pages.filter((one) => one.group === group);
        if (entries.length === 0) return null;
        return (
          <div key={group} className="flex gap-0.5 md:flex-col">
            <h2 className="hidden px-2.5 pb-1 text-small font-medium text-muted md:block">{group}</h2>
            {entries.map((one) => (
              <NavLink
                key={one.id}
                to={`/settings/${one.id}`}
                className={({ isActive }) =>
                  cx(
                    "rounded-md px-2.5 py-1.5 whitespace-nowrap hover:bg-bg3 pointer-coarse:py-2.5",
                    isActive ? "bg-bg3 font-medium" : "text-muted hover:text-text",
                  )
                }
              >
                {one.title}
              </NavLink>
            ))}
          </div>
        );
      })}
    </nav>
  );
}

function Forbidden() {
  return (
    <div className="py-10 text-center">
      <h2 className="text-[16px] font-semibold">Not for you</h2>
      <p className="mt-1 text-muted">This page is for administrators.</p>
      <Link to="/settings/profile" className="mt-4 inline-block text-accent underline">
        Your own settings
      </Link>
    </div>
  );
}
