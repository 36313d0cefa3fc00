import { FileCode, X } from "lucide-react";
import { tokenOf } from "@/chat/file_references";
import type { ReferencePart } from "@/chat/types";
import { IconButton } from "@/ui/button";

interface Props {
  references: readonly ReferencePart[];
  onRemove: (reference: ReferencePart) => void;
}

/** The files and lines to which the message refers. */
export function ReferenceList({ references, onRemove }: Props) {
  if (references.length === 0) return null;
  return (
    <ul aria-label="References" className="flex flex-wrap gap-1.5 px-3 pt-3">
      {references.map((one) => {
        const name = tokenOf(one).slice(1);
        return (
          <li
            key={name}
            title={one.content || name}
            className="flex h-7 max-w-72 items-center gap-1.5 rounded-md border border-line bg-bg2 pr-0.5 pl-2 text-small"
          >
            <FileCode aria-hidden className="size-3.5 shrink-0 text-muted" />
            {/* Truncated at the start, because the end of a path is more specific. */}
            <span className="min-w-0 truncate font-mono [direction:rtl]">
              <bdi>{name}</bdi>
            </span>
            <IconButton label={`Remove ${name}`} size="small" onClick={() => onRemove(one)}>
              <X />
            </IconButton>
          </li>
        );
      })}
    </ul>
  );
}
