import { type ReactNode, useEffect } from "react";
import { Link, useRouteError } from "react-router";
import { sentence } from "@/api/errors";
import { Button } from "@/ui/button";

/** A page with an error and what to do about it. */
export function Problem({ title, text, children }: { title: string; text: string; children?: ReactNode }) {
  return (
    <div className="grid h-full place-items-center overflow-y-auto p-6">
      <div className="max-w-md text-center">
        <h1 className="text-[20px] font-semibold">{title}</h1>
        <p className="mt-2 break-words text-muted">{text}</p>
        <div className="mt-5 flex flex-wrap justify-center gap-2">{children}</div>
      </div>
    </div>
  );
}

export function NotFoundPage() {
  return (
    <Problem
      title="Nothing is here"
      text="The address may be wrong, or the page was deleted or is not shared with you."
    >
      <HomeLink />
    </Problem>
  );
}

export function HomeLink() {
  return (
    <Link to="/" className="rounded-lg border border-line px-3 py-1.5 font-medium hover:bg-bg3">
      Go to your chats
    </Link>
  );
}

// A missing chunk belongs to an older build. Reloading the page loads the current build.
const CHUNK = /dynamically imported module|importing a module script failed|error loading dynamically/i;

/** The error page of a route. The rest of the application continues to work. */
export function RouteError() {
  const error = useRouteError();
  const isChunk = CHUNK.test(sentence(error));
  useEffect(() => {
    // Reload only once: if it does not help, another reload would not either.
    if (!isChunk || sessionStorage.getItem("rookery.reloaded")) return;
    // Without a connection, the browser would show an error page of its own.
    if (!navigator.onLine) return;
    sessionStorage.setItem("rookery.reloaded", "1");
    location.reload();
  }, [isChunk]);
  return (
    <Problem
      title={isChunk ? "A part of this page could not be loaded" : "This page could not be shown"}
      text={isChunk ? "The server cannot be reached, or has a new version." : sentence(error)}
    >
      <Button kind="primary" onClick={() => location.reload()}>
        Reload
      </Button>
      <HomeLink />
    </Problem>
  );
}
