import { createContext, type MouseEvent, type ReactNode, useContext } from "react";
import { filePlace } from "@/chat/file_paths";
import { ConversationContext } from "@/features/conversation/chat_context";
import { type OpenFile, withFile } from "@/features/conversation/open_file";
import { cx } from "@/ui/cx";

/** Set inside a link, where paths are plain text, because links cannot be nested. */
export const InsideLink = createContext(false);

interface Props {
  path: string;
  line?: number | null;
  className?: string;
  title?: string;
  children?: ReactNode;
}

/** A file path. If the user may see the workspace, it is a link that opens the file. */
export function PathLink({ path, line = null, className, title, children }: Props) {
  const open = useContext(ConversationContext)?.openFile;
  const shown = children ?? path;
  if (!open || !path) {
    return (
      <span className={className} title={title}>
        {shown}
      </span>
    );
  }
  return (
    <a {...leadingTo(open, path, line)} className={cx("hover:underline", className)} title={title}>
      {shown}
    </a>
  );
}

const CODE = "rounded bg-bg3 px-1 py-0.5 font-mono text-[0.87em] break-words";

/** Inline code. If it is a file path, it is a link to the file. */
export function InlineCode({ text }: { text: string }) {
  const open = useContext(ConversationContext)?.openFile;
  const isInside = useContext(InsideLink);
  const place = open && !isInside ? filePlace(text) : null;
  if (!open || !place) return <code className={CODE}>{text}</code>;
  return (
    <a
      {...leadingTo(open, place.path, place.line)}
      className="underline decoration-control decoration-dotted underline-offset-4 hover:decoration-solid"
    >
      <code className={CODE}>{text}</code>
    </a>
  );
}

function leadingTo(open: OpenFile, path: string, line: number | null) {
  return {
    // A real URL, so that it can be opened in another tab.
    href: `?${withFile(new URLSearchParams(), path, line)}`,
    onClick: (event: MouseEvent) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      open(path, line);
    },
  };
}
