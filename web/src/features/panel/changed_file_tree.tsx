import { Check, File as FileIcon, Folder } from "lucide-react";
import { useMemo } from "react";
import { fileTree } from "@/chat/diff_rows";
import { Counts } from "@/features/panel/diff_line";
import type { DiffFile } from "@/lib/diff";

interface Props {
  files: readonly DiffFile[];
  viewed: (file: DiffFile) => boolean;
  onOpen: (file: DiffFile) => void;
}

const INDENT_PX = 16;

/** The tree of changed files. */
export function FileList({ files, viewed, onOpen }: Props) {
  const rows = useMemo(() => fileTree(files), [files]);
  return (
    <ul aria-label="Changed files" className="max-h-[30%] shrink-0 overflow-y-auto border-b border-line p-1">
      {rows.map((row) => (
        <li key={row.key} style={{ paddingLeft: row.depth * INDENT_PX }}>
          {row.kind === "folder" ? (
            <span className="flex h-7 items-center gap-1.5 px-2 text-muted">
              <Folder className="size-4 shrink-0" aria-hidden />
              <span className="min-w-0 truncate" title={row.name}>
                {row.name}
              </span>
            </span>
          ) : (
            <button
              type="button"
              onClick={() => onOpen(row.file)}
              className="flex h-7 w-full items-center gap-1.5 rounded-md px-2 text-left hover:bg-bg3 pointer-coarse:h-11"
            >
              {viewed(row.file) ? (
                <Check className="size-4 shrink-0 text-ok" aria-label="Viewed" />
              ) : (
                <FileIcon className="size-4 shrink-0 text-muted" aria-hidden />
              )}
              <span className="min-w-0 flex-1 truncate" title={row.file.path}>
                {row.name}
              </span>
              <Counts added={row.file.added} removed={row.file.removed} />
            </button>
          )}
        </li>
      ))}
    </ul>
  );
}
