import type { ReactNode } from "react";
import { Logo } from "@/ui/logo";

/** A page with one centered card, for the login and the setup. */
export function CardPage({ title, text, children }: { title: string; text?: ReactNode; children: ReactNode }) {
  return (
    <main className="h-dvh overflow-y-auto bg-bg2">
      <div className="mx-auto flex min-h-full w-full max-w-[27rem] flex-col justify-center px-4 py-10">
        <p className="mb-6 flex items-center justify-center gap-2.5 text-[20px] font-semibold">
          <Logo className="size-8" /> Rookery
        </p>
        <div className="rounded-xl border border-line bg-bg1 p-6 shadow-sm">
          <h1 className="text-[18px] font-semibold">{title}</h1>
          {text && <p className="mt-1 text-muted">{text}</p>}
          <div className="mt-5">{children}</div>
        </div>
      </div>
    </main>
  );
}
