import { type ReactNode, useEffect } from "react";
import { Link, useRouteError } from "react-router";
import { sentence } from "@/api/errors";
import { Button } from "@/ui/button";

/** A page that says what is wrong and what to do about it. */
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
    <Problem title="Nothing is here" text="The address may be wrong, or what was here is gone or not shared with you.">
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

// A part of the page that is gone belongs to an older build; the page of the new one knows the new parts.
const CHUNK = /dynamically imported module|importing a module script failed|error loading dynamically/i;

/** A page failed; the rest of the application goes on. */
export function RouteError() {
  const error = useRouteError();
  const isChunk = CHUNK.test(sentence(error));
  useEffect(() => {
    // Once only: a reload that does not help must not be repeated for ever.
    if (!isChunk || sessionStorage.getItem("rookery.reloaded")) return;
    sessionStorage.setItem("rookery.reloaded", "1");
    location.reload();
  }, [isChunk]);
  return (
    <Problem
      title={isChunk ? "A part of this page could not be loaded" : "This page could not be shown"}
      text={isChunk ? "The server may be starting, or has a new version." : sentence(error)}
    >
      <Button kind="primary" onClick={() => location.reload()}>
        Reload
      </Button>
      <HomeLink />
    </Problem>
  );
}
