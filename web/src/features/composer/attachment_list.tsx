import { FileText, ImageIcon, TextCursorInput, X } from "lucide-react";
import type { Attachment } from "@/features/composer/attachments";
import { sizeOf } from "@/features/timeline/message_files";
import { IconButton } from "@/ui/button";
import { cx } from "@/ui/cx";

interface Props {
  items: readonly Attachment[];
  onRemove: (key: string) => void;
  /** Move a pasted text back into the message box. */
  onInsert: (item: Attachment) => void;
}

/** The files of the draft, with upload progress and errors. */
export function AttachmentList({ items, onRemove, onInsert }: Props) {
  if (items.length === 0) return null;
  return (
    <ul aria-label="Attachments" className="flex flex-wrap gap-2 px-3 pt-3">
      {items.map((one) => (
        <li
          key={one.key}
          className={cx(
            "relative flex max-w-64 items-center gap-2 overflow-hidden rounded-lg border bg-bg2 py-1 pr-1 pl-2 text-small",
            one.error ? "border-danger" : "border-line",
          )}
        >
          {one.mimeType.startsWith("image/") ? (
            <ImageIcon aria-hidden className="size-4 shrink-0 text-muted" />
          ) : (
            <FileText aria-hidden className="size-4 shrink-0 text-muted" />
          )}
          <span className="min-w-0">
            <span className="block truncate">{one.name}</span>
            <span className={cx("block", one.error ? "break-words text-danger" : "truncate text-muted")}>
              {one.error ?? (one.id ? sizeOf(one.size) : `${Math.round(one.progress * 100)} % of ${sizeOf(one.size)}`)}
            </span>
          </span>
          {one.pasted !== undefined && (
            <IconButton label="Insert as text" size="small" onClick={() => onInsert(one)}>
              <TextCursorInput />
            </IconButton>
          )}
          <IconButton
            label={one.id || one.error ? `Remove ${one.name}` : `Cancel ${one.name}`}
            size="small"
            onClick={() => onRemove(one.key)}
          >
            <X />
          </IconButton>
          {!one.id && !one.error && (
            <span
              aria-hidden
              className="absolute bottom-0 left-0 h-0.5 bg-accent"
              style={{ width: `${one.progress * 100}%` }}
            />
          )}
        </li>
      ))}
    </ul>
  );
}
