import { Download, File as FileIcon, FileText } from "lucide-react";
import { useState } from "react";
import { fileAddress } from "@/api/files";
import type { FilePart } from "@/chat/types";
import { Dialog } from "@/ui/dialog";

export function sizeOf(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`;
  if (bytes < 1024 * 1024) return `${Math.round(bytes / 1024)} KB`;
  return `${(bytes / 1024 / 1024).toFixed(1)} MB`;
}

interface ChipProps {
  id: string;
  name: string;
  mimeType: string;
  size?: number | null;
}

const isPicture = (type: string) => /^image\/(png|jpeg|gif|webp|avif)$/.test(type);

/** A file of a message: a picture is shown, text is previewed, others are downloaded. */
export function FileChip({ id, name, mimeType, size }: ChipProps) {
  const [open, setOpen] = useState(false);
  const [broken, setBroken] = useState(false);
  const shown = name || "file";
  if (isPicture(mimeType) && !broken) {
    return (
      <>
        <button
          type="button"
          onClick={() => setOpen(true)}
          aria-label={`Open ${shown}`}
          className="block overflow-hidden rounded-lg border border-line bg-bg2"
        >
          <img
            src={fileAddress(id)}
            alt={shown}
            loading="lazy"
            onError={() => setBroken(true)}
            className="h-40 w-56 object-cover"
          />
        </button>
        <Dialog open={open} onOpenChange={setOpen} title={shown} wide>
          <img src={fileAddress(id)} alt={shown} className="mx-auto max-h-[70dvh] max-w-full object-contain" />
          <p className="mt-3 text-center">
            <a href={fileAddress(id)} download={shown} className="text-accent underline">
              Download
            </a>
          </p>
        </Dialog>
      </>
    );
  }
  const Icon = mimeType.startsWith("text/") || mimeType === "application/json" ? FileText : FileIcon;
  return (
    <a
      href={fileAddress(id)}
      download={shown}
      className="inline-flex max-w-72 items-center gap-2 rounded-lg border border-line bg-bg1 px-3 py-2 hover:bg-bg2"
    >
      <Icon aria-hidden className="size-4 shrink-0 text-muted" />
      <span className="min-w-0 truncate">{shown}</span>
      {broken && <span className="shrink-0 text-small text-warn">not available</span>}
      {size ? (
        <span className="shrink-0 text-small text-muted">{sizeOf(size)}</span>
      ) : (
        <Download aria-hidden className="size-3.5 shrink-0 text-muted" />
      )}
    </a>
  );
}

/** The files of a row. */
export function Files({ files }: { files: FilePart[] }) {
  return (
    <div className="flex flex-wrap gap-2">
      {files.map((file, index) =>
        file.file_id ? (
          <FileChip key={index} id={file.file_id} name={file.name ?? ""} mimeType={file.media_type ?? ""} />
        ) : (
          file.data && (
            <img
              key={index}
              alt={file.name ?? "Picture"}
              className="h-40 rounded-lg border border-line object-cover"
              src={`data:${file.media_type ?? "image/png"};base64,${file.data}`}
            />
          )
        ),
      )}
    </div>
  );
}
