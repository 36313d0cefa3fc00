import { Download, File as FileIcon, FileText, RotateCcw } from "lucide-react";
import { Suspense, useState } from "react";
import { hasReason } from "@/api/access_reasons";
import { isStatus, sentence } from "@/api/errors";
import { fetchFile, fileAddress } from "@/api/files";
import type { FilePart } from "@/chat/types";
import { useConversation } from "@/features/conversation/chat_context";
import { languageOfPath } from "@/features/timeline/highlighter";
import type { Picture } from "@/features/timeline/lightbox";
import { downloadFile, isStale, useFileSource } from "@/state/file_source";
import { Button, IconButton } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { DownloadLink } from "@/ui/download_link";
import { lazyPart } from "@/ui/lazy_part";
import { toast } from "@/ui/toast";
import { CodeText } from "./code_block";

const PREVIEW_BYTES = 64 * 1024;

// Loaded when the first image is opened.
const Lightbox = lazyPart(async () => (await import("@/features/timeline/lightbox")).Lightbox);

export function sizeOf(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`;
  if (bytes < 1024 * 1024) return `${Math.round(bytes / 1024)} KB`;
  return `${(bytes / 1024 / 1024).toFixed(1)} MB`;
}

const isPicture = (type: string) => /^image\/(png|jpeg|gif|webp|avif)$/.test(type);
const isText = (type: string) => type.startsWith("text/") || type === "application/json";

interface ChipProps {
  id: string;
  name: string;
  mimeType: string;
  size?: number | null;
}

/** A single file: an image is shown, text is previewed, other files are downloaded. */
export function FileChip({ id, name, mimeType, size }: ChipProps) {
  const { chatId } = useConversation();
  const [at, setAt] = useState<number | null>(null);
  const shown = name || "file";
  if (!isPicture(mimeType)) return <Chip id={id} name={shown} mimeType={mimeType} size={size ?? null} />;
  return (
    <>
      <Thumbnail id={id} name={shown} onOpen={() => setAt(0)} />
      {at !== null && (
        <Suspense fallback={null}>
          <Lightbox chatId={chatId} pictures={[{ id, name: shown, data: null }]} at={at} onAt={setAt} />
        </Suspense>
      )}
    </>
  );
}

/** The files of a row. The lightbox can step through its images. */
export function Files({ files }: { files: FilePart[] }) {
  const { chatId } = useConversation();
  const [at, setAt] = useState<number | null>(null);
  const pictures: Picture[] = [];
  const shown = files.flatMap((file, index) => {
    const name = file.name ?? "";
    const type = file.media_type ?? "";
    if (file.file_id && !isPicture(type)) {
      return [<Chip key={index} id={file.file_id} name={name || "file"} mimeType={type} size={null} />];
    }
    if (!file.file_id && !file.data) return [];
    const place = pictures.length;
    const data = file.file_id ? null : `data:${type || "image/png"};base64,${file.data}`;
    pictures.push({ id: file.file_id ?? null, name: name || "Picture", data });
    return [
      <Thumbnail
        key={index}
        id={file.file_id ?? null}
        data={data}
        name={name || "Picture"}
        onOpen={() => setAt(place)}
      />,
    ];
  });
  return (
    <div className="flex flex-wrap gap-2">
      {shown}
      {at !== null && (
        <Suspense fallback={null}>
          <Lightbox chatId={chatId} pictures={pictures} at={at} onAt={setAt} />
        </Suspense>
      )}
    </div>
  );
}

interface ThumbnailProps {
  id: string | null;
  data?: string | null;
  name: string;
  onOpen: () => void;
}

/** A thumbnail of a fixed size, so that nothing moves when it is loaded. */
function Thumbnail({ id, data, name, onOpen }: ThumbnailProps) {
  const { chatId } = useConversation();
  const [round, setRound] = useState(0);
  const [failure, setFailure] = useState<string | null>(null);
  const { src, error } = useFileSource(id, chatId, round);
  const broken = failure ?? (error ? said(error) : null);
  // An image that cannot be decoded is shown as an ordinary file.
  if (broken === NO_PICTURE && id) return <Chip id={id} name={name} mimeType="application/octet-stream" size={null} />;
  if (broken) {
    return (
      <span className="inline-flex max-w-72 items-center gap-2 rounded-lg border border-line bg-bg1 py-1 pr-1 pl-3">
        <FileIcon aria-hidden className="size-4 shrink-0 text-muted" />
        <span className="min-w-0 truncate">{name}</span>
        <span className="shrink-0 text-small text-warn">{broken}</span>
        {broken !== EXPIRED && (
          <IconButton
            label={`Load ${name} again`}
            size="small"
            onClick={() => {
              setFailure(null);
              setRound(round + 1);
            }}
          >
            <RotateCcw />
          </IconButton>
        )}
      </span>
    );
  }
  const address = data ?? src;
  return (
    <button
      type="button"
      onClick={onOpen}
      aria-label={`Open ${name}`}
      className="block h-40 w-56 max-w-full overflow-hidden rounded-lg border border-line bg-bg2"
    >
      {address && (
        <img
          key={round}
          src={address}
          alt={name}
          loading="lazy"
          onError={() => {
            // An image error has no reason, so the file is requested again to get it.
            if (!id) setFailure(NO_PICTURE);
            else if (isStale(fileAddress(id), address)) setRound(round + 1);
            else
              fetchFile(id, chatId).then(
                () => setFailure(NO_PICTURE),
                (problem: unknown) => setFailure(said(problem)),
              );
          }}
          className="size-full object-cover"
        />
      )}
    </button>
  );
}

const EXPIRED = "Expired";
const NO_PICTURE = "not a picture";
const said = (error: unknown) => (isStatus(error, 404) ? EXPIRED : sentence(error));

interface FileProps {
  id: string;
  name: string;
  mimeType: string;
  size: number | null;
}

function Chip({ id, name, mimeType, size }: FileProps) {
  const { chatId } = useConversation();
  const [preview, setPreview] = useState<string | null>(null);
  const canPreview = isText(mimeType) && (size === null || size <= PREVIEW_BYTES);
  const Icon = isText(mimeType) ? FileText : FileIcon;
  const open = async () => {
    try {
      if (!canPreview) return await downloadFile(id, chatId, name);
      const blob = await fetchFile(id, chatId);
      if (blob.size > PREVIEW_BYTES) await downloadFile(id, chatId, name);
      else setPreview(await blob.text());
    } catch (error) {
      toast(isStatus(error, 404) ? `${name} has expired.` : sentence(error), { kind: "error" });
    }
  };
  const className =
    "inline-flex max-w-72 items-center gap-2 rounded-lg border border-line bg-bg1 px-3 py-2 text-left hover:bg-bg2";
  const words = (
    <>
      <Icon aria-hidden className="size-4 shrink-0 text-muted" />
      <span className="min-w-0 truncate">{name}</span>
      {size ? (
        <span className="shrink-0 text-small text-muted">{sizeOf(size)}</span>
      ) : (
        !canPreview && <Download aria-hidden className="size-3.5 shrink-0 text-muted" />
      )}
    </>
  );
  // A plain link, unless a preview or a reason is needed: it can be opened in another tab.
  if (!canPreview && !hasReason(chatId)) {
    return (
      <DownloadLink path={fileAddress(id)} name={name} className={className}>
        {words}
      </DownloadLink>
    );
  }
  return (
    <>
      <button type="button" onClick={() => void open()} className={className}>
        {words}
      </button>
      <Dialog
        open={preview !== null}
        onOpenChange={() => setPreview(null)}
        title={name}
        wide
        footer={<Button onClick={() => void downloadFile(id, chatId, name)}>Download</Button>}
      >
        <pre className="overflow-x-auto rounded-lg bg-bg2 p-3" tabIndex={0}>
          <CodeText code={preview ?? ""} language={languageOfPath(name)} />
        </pre>
      </Dialog>
    </>
  );
}
