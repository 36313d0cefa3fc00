import { useQuery } from "@tanstack/react-query";
import { type ReactNode, useEffect, useState } from "react";
import { Navigate, useLocation } from "react-router";
import { hasCode, isStatus, sentence } from "@/api/errors";
import { Problem } from "@/app/problem_page";
import { loadAppearance } from "@/state/appearance";
import { followChats } from "@/state/chat_list";
import { startWatch, stopWatch } from "@/state/chat_list_stream";
import { meQuery } from "@/state/login_session";
import { Button } from "@/ui/button";
import { Spinner } from "@/ui/spinner";

/** Show the children to signed-in users; redirect others to the setup or login page. */
export function Guarded({ children }: { children: ReactNode }) {
  const { data, error, refetch } = useQuery(meQuery);
  const { pathname, search } = useLocation();
  if (data) return <SignedIn key={data.id}>{children}</SignedIn>;
  if (hasCode(error, "setup_required")) return <Navigate to="/setup" replace />;
  if (isStatus(error, 401)) {
    const next = pathname === "/" ? "" : `?next=${encodeURIComponent(pathname + search)}`;
    return <Navigate to={`/login${next}`} replace />;
  }
  if (error) {
    return (
      <Problem title="Rookery does not answer" text={sentence(error)}>
        <Button kind="primary" onClick={() => refetch()}>
          Try again
        </Button>
      </Problem>
    );
  }
  return <Loading />;
}

function SignedIn({ children }: { children: ReactNode }) {
  useEffect(() => {
    // If it fails, the appearance stored in this browser is used.
    loadAppearance().catch(() => {});
    startWatch();
    const ends = [followChats(), stopWatch];
    return () => {
      for (const end of ends) end();
    };
  }, []);
  return children;
}

/** A loading indicator. It appears after a delay, because most loads are short. */
export function Loading() {
  const [isLate, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), 150);
    return () => clearTimeout(timer);
  }, []);
  return (
    <div className="grid h-full place-items-center" aria-busy>
      {isLate && (
        <p className="flex items-center gap-2 text-muted">
          <Spinner /> Loading
        </p>
      )}
    </div>
  );
}
