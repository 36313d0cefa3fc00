import { useMutation } from "@tanstack/react-query";
import { Eye, Info, TriangleAlert } from "lucide-react";
import type { ReactNode } from "react";
import { Link } from "react-router";
import { useStore } from "zustand";
import { dismissAccessNotice } from "@/api/account";
import { sentence } from "@/api/errors";
import { noticeOf } from "@/chat/admin_accesses";
import { meQuery, session, useSelf } from "@/state/login_session";
import { queryClient } from "@/state/queries";
import { Button } from "@/ui/button";
import { Moment } from "@/ui/relative_time";
import { toast } from "@/ui/toast";

/** The lines above the page: a new version, an unencrypted connection, and accesses by administrators. */
export function Banners() {
  return (
    <>
      <NewBuild />
      <ClearBanner />
      <AccessBanner />
    </>
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
