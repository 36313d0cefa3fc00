import { ChevronLeft, ChevronRight, Download, X, ZoomIn, ZoomOut } from "lucide-react";
import { Dialog } from "radix-ui";
import { type KeyboardEvent, type ReactNode, useState } from "react";
import { hasReason } from "@/api/access_reasons";
import { fileAddress } from "@/api/files";
import { useFileSource } from "@/state/file_source";
import { cx } from "@/ui/cx";
import { DownloadLink } from "@/ui/download_link";

export interface Picture {
  name: string;
  /** The id of the file. */
  id: string | null;
  /** The image data, if it is not a file. */
  data: string | null;
}

interface Props {
  chatId: string;
  pictures: readonly Picture[];
  /** The index of the open image; null if closed. */
  at: number | null;
  onAt: (at: number | null) => void;
}

/** A full-screen view of images. The arrow keys switch between them, and a click shows the original size. */
export function Lightbox({ chatId, pictures, at, onAt }: Props) {
  const [zoomed, setZoomed] = useState(false);
  const picture = at === null ? undefined : pictures[at];
  const { src } = useFileSource(picture?.id ?? null, chatId);
  const address = picture?.data ?? src ?? undefined;
  const many = pictures.length > 1;
  const go = (by: 1 | -1) => {
    if (at === null || !many) return;
    setZoomed(false);
    onAt((at + by + pictures.length) % pictures.length);
  };
  function onKeyDown(event: KeyboardEvent) {
    if (event.key === "ArrowRight") go(1);
    else if (event.key === "ArrowLeft") go(-1);
    else if (event.key === "+" || event.key === "-") setZoomed(event.key === "+");
  }
  return (
    <Dialog.Root open={picture !== undefined} onOpenChange={(open) => !open && onAt(null)}>
      <Dialog.Portal>
        <Dialog.Overlay className="fixed inset-0 z-40 bg-black/80" />
        <Dialog.Content
          aria-describedby={undefined}
          onKeyDown={onKeyDown}
          className="fixed inset-0 z-40 flex flex-col text-white outline-none"
        >
          <div className="flex items-center gap-1 p-2 pt-[max(0.5rem,env(safe-area-inset-top))]">
            <Dialog.Title className="min-w-0 flex-1 truncate px-2 font-medium">{picture?.name}</Dialog.Title>
            {many && at !== null && (
              <span aria-live="polite" className="px-2 tabular-nums">
                {at + 1} of {pictures.length}
              </span>
            )}
            <Tool label={zoomed ? "Fit to the window" : "Original size"} onClick={() => setZoomed(!zoomed)}>
              {zoomed ? <ZoomOut /> : <ZoomIn />}
            </Tool>
            {picture?.id && !hasReason(chatId) ? (
              <DownloadLink path={fileAddress(picture.id)} name={picture.name} label="Download" className={TOOL}>
                <Download />
              </DownloadLink>
            ) : (
              <a href={address} download={picture?.name} aria-label="Download" className={TOOL}>
                <Download />
              </a>
            )}
            <Dialog.Close aria-label="Close" className={TOOL}>
              <X />
            </Dialog.Close>
          </div>
          <div
            className={cx("grid min-h-0 flex-1", zoomed ? "place-items-start overflow-auto" : "place-items-center p-4")}
            onPointerDown={(event) => event.target === event.currentTarget && onAt(null)}
          >
            {picture && address && (
              <img
                key={address}
                src={address}
                alt={picture.name}
                className={cx(zoomed ? "m-auto max-w-none" : "max-h-full max-w-full min-h-0 object-contain")}
              />
            )}
          </div>
          {many && (
            <>
              <Tool
                label="Previous picture"
                onClick={() => go(-1)}
                className="absolute top-1/2 left-2 -translate-y-1/2"
              >
                <ChevronLeft />
              </Tool>
              <Tool label="Next picture" onClick={() => go(1)} className="absolute top-1/2 right-2 -translate-y-1/2">
                <ChevronRight />
              </Tool>
            </>
          )}
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}

const TOOL =
  "grid size-10 shrink-0 place-items-center rounded-full bg-black/50 hover:bg-black/80 pointer-coarse:size-11 [&_svg]:size-5";

interface ToolProps {
  label: string;
  onClick: () => void;
  className?: string;
  children: ReactNode;
}

function Tool({ label, onClick, className, children }: ToolProps) {
  return (
    <button type="button" aria-label={label} onClick={onClick} className={cx(TOOL, className)}>
      {children}
    </button>
  );
}
