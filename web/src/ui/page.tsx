import { type ReactNode, useEffect, useRef } from "react";
import { ListButton } from "@/ui/list_button";

interface Props {
  title: string;
  children: ReactNode;
  actions?: ReactNode;
  wide?: boolean;
}

/** The layout of pages other than chats: a title and a column. */
export function Page({ title, children, actions, wide }: Props) {
  const scroller = useRef<HTMLDivElement>(null);
  useEffect(() => {
    document.title = `${title} - Rookery`;
    // Another page in the same layout, such as in the settings, starts at its beginning.
    scroller.current?.scrollTo(0, 0);
  }, [title]);
  return (
    <div className="flex min-h-0 flex-1 flex-col">
      <header className="flex h-12 shrink-0 items-center gap-2 border-b border-line px-3 md:px-6">
        <ListButton />
        <h1 className="min-w-0 flex-1 truncate text-[16px] font-semibold">{title}</h1>
        {actions}
      </header>
      <div ref={scroller} className="min-h-0 flex-1 overflow-y-auto">
        <div className={`mx-auto flex flex-col gap-6 px-4 py-6 md:px-6 ${wide ? "max-w-6xl" : "max-w-3xl"}`}>
          {children}
        </div>
      </div>
    </div>
  );
}
