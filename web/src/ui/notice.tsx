import { CircleAlert, CircleCheck, Info, TriangleAlert } from "lucide-react";
import type { ReactNode } from "react";
import { cx } from "@/ui/cx";

type Kind = "info" | "ok" | "warn" | "error";

const ICONS: Record<Kind, ReactNode> = {
  info: <Info className="text-accent" />,
  ok: <CircleCheck className="text-ok" />,
  warn: <TriangleAlert className="text-warn" />,
  error: <CircleAlert className="text-danger" />,
};

/** A box with a message. */
export function Notice({
  kind = "info",
  children,
  className,
}: {
  kind?: Kind;
  children: ReactNode;
  className?: string;
}) {
  return (
    <div
      role={kind === "error" ? "alert" : "note"}
      className={cx(
        "flex items-start gap-2 rounded-lg border border-line bg-bg2 px-3 py-2 [&>svg]:mt-0.5 [&>svg]:size-4 [&>svg]:shrink-0",
        className,
      )}
    >
      {ICONS[kind]}
      <div className="min-w-0 flex-1 break-words">{children}</div>
    </div>
  );
}
