import { queryOptions, useQuery } from "@tanstack/react-query";
import { useVirtualizer } from "@tanstack/react-virtual";
import { AtSign, Copy, Download, WrapText, X } from "lucide-react";
import { type ReactNode, useEffect, useMemo, useRef, useState } from "react";
import { useStore } from "zustand";
import { sentence } from "@/api/errors";
import { bytesAddress, readFile } from "@/api/workspaces";
import { Empty, Waiting } from "@/features/panel/workspace_state";
import { cachedLines, highlight, type Lines, languageOfPath } from "@/features/timeline/highlighter";
import { composerPorts } from "@/state/composer_port";
import { layout, setLayout } from "@/state/diff_layout";
import { isStale, useSignedSource } from "@/state/file_source";
import { Button, IconButton } from "@/ui/button";
import { copyText } from "@/ui/clipboard";
import { cx } from "@/ui/cx";
import { DownloadLink } from "@/ui/download_link";

const LINE_PX = 20;
const PICTURE = /\.(png|jpe?g|gif|webp)$/i;

export const fileQuery = (chatId: string, path: string) =>
  queryOptions({
    queryKey: ["file", chatId, path],
    queryFn: ({ signal }) => readFile(chatId, path, signal),
    retry: false,
    // The agent may change the file, so it is loaded again when it is opened.
    staleTime: 0,
  });

interface Props {
  chatId: string;
  path: string;
  line: number | null;
  onClose: () => void;
}

/** A read-only view of one file of the workspace. */
export function FileView({ chatId, path: asked, line, onClose }: Props) {
  const { data, error, refetch } = useQuery(fileQuery(chatId, asked));
  const wraps = useStore(layout, (state) => state.diff.wraps);
  const port = useStore(composerPorts, (state) => state.ports.get(chatId) ?? null);
  const path = data?.path ?? asked;
  const cut = path.lastIndexOf("/") + 1;
  const isText = data !== undefined && data.text !== null;
  return (
    <section aria-label={`File ${path}`} className="flex min-h-0 flex-1 flex-col">
      <div className="flex h-9 shrink-0 items-center gap-0.5 border-b border-line bg-bg2 pr-1 pl-3">
        <span className="flex min-w-0 flex-1 font-mono text-code" title={path}>
          <span className="min-w-0 truncate text-muted">{path.slice(0, cut)}</span>
          <span className="min-w-0 shrink-0 truncate">{path.slice(cut)}</span>
        </span>
        {port && !path.startsWith("/") && (
          <IconButton label="Mention in the message" size="small" onClick={() => port.mention(path)}>
            <AtSign />
          </IconButton>
        )}
        {isText && (
          <IconButton
            label={wraps ? "Do not wrap lines" : "Wrap lines"}
            size="small"
            aria-pressed={wraps}
            onClick={() => setLayout({ diff: { ...layout.getState().diff, wraps: !wraps } })}
          >
            <WrapText />
          </IconButton>
        )}
        <IconButton
          label="Copy the path"
          size="small"
          onClick={() => void copyText(path, "The path is on the clipboard.")}
        >
          <Copy />
        </IconButton>
        <SaveLink chatId={chatId} path={asked} />
        <IconButton label="Close the file" size="small" onClick={onClose}>
          <X />
        </IconButton>
      </div>
      {error && !data ? (
        <Empty text={sentence(error)}>
          <Button onClick={() => void refetch()}>Try again</Button>
        </Empty>
      ) : !data ? (
        <Waiting text="Reading" />
      ) : data.text === null ? (
        <NoText chatId={chatId} path={asked} />
      ) : data.text === "" ? (
        <Empty text="The file is empty." />
      ) : (
        <>
          {data.truncated && (
            <p role="note" className="shrink-0 border-b border-line px-3 py-1.5 text-small text-muted">
              Only the beginning is shown: the first 1 MB.
            </p>
          )}
          <TextLines text={data.text} path={path} line={line} wraps={wraps} />
        </>
      )}
    </section>
  );
}

function SaveLink({ chatId, path }: { chatId: string; path: string }) {
  return (
    <DownloadLink
      path={bytesAddress(chatId, path)}
      name={path.slice(path.lastIndexOf("/") + 1)}
      label="Download the file"
      className="inline-flex size-6 shrink-0 items-center justify-center rounded-md text-muted hover:bg-bg3 hover:text-text pointer-coarse:size-11 [&_svg]:size-4"
    >
      <Download />
    </DownloadLink>
  );
}

function NoText({ chatId, path }: { chatId: string; path: string }) {
  const [isBroken, setBroken] = useState(false);
  const [round, setRound] = useState(0);
  const isPicture = PICTURE.test(path);
  const address = bytesAddress(chatId, path);
  const { src, error } = useSignedSource(isPicture ? address : null, round);
  if (!isPicture || isBroken || error) return <Empty text="This file is not text. It can be downloaded." />;
  return (
    <div className="min-h-0 flex-1 overflow-auto p-3">
      {src && (
        <img
          src={src}
          alt={path}
          onError={() => (isStale(address, src) ? setRound(round + 1) : setBroken(true))}
          className="mx-auto max-w-full rounded-md border border-line"
        />
      )}
    </div>
  );
}

interface LinesProps {
  text: string;
  path: string;
  line: number | null;
  wraps: boolean;
}

/** The lines of a file. Only visible lines are mounted. */
function TextLines({ text, path, line, wraps }: LinesProps) {
  const box = useRef<HTMLElement>(null);
  const lines = useMemo(() => text.replace(/\n$/, "").split("\n"), [text]);
  const widest = useMemo(() => lines.reduce((most, one) => Math.max(most, one.length), 0), [lines]);
  const colors = useLineColors(text, languageOfPath(path));
  const list = useVirtualizer({
    count: lines.length,
    getScrollElement: () => box.current,
    estimateSize: () => LINE_PX,
    overscan: 20,
  });
  // Line wrapping changes the heights.
  // biome-ignore lint/correctness/useExhaustiveDependencies: runs when the wrapping changes
  useEffect(() => list.measure(), [wraps]);
  const target = line === null ? null : Math.min(line, lines.length);
  // biome-ignore lint/correctness/useExhaustiveDependencies: runs once for each requested line
  useEffect(() => {
    if (target !== null) list.scrollToIndex(target - 1, { align: "center" });
  }, [target, path]);
  const digits = String(lines.length).length;
  return (
    <section
      ref={box}
      tabIndex={0}
      aria-label={`Text of ${path}`}
      className="min-h-0 flex-1 overflow-auto [tab-size:4]"
    >
      <div
        className="relative min-w-full font-mono text-code"
        style={{ height: list.getTotalSize(), ...(wraps ? {} : { width: `calc(${widest + digits}ch + 4rem)` }) }}
      >
        {list.getVirtualItems().map((item) => (
          <div
            key={item.key}
            data-index={item.index}
            ref={wraps ? list.measureElement : undefined}
            className={cx("absolute inset-x-0 flex leading-5", item.index + 1 === target && "bg-mark")}
            style={{ top: item.start, ...(wraps ? {} : { height: LINE_PX }) }}
          >
            <span
              aria-hidden
              className="shrink-0 pr-3 pl-3 text-right text-muted select-none"
              style={{ width: `calc(${digits}ch + 1.5rem)` }}
            >
              {item.index + 1}
            </span>
            <span
              className={cx("min-w-0 pr-4", wraps ? "[overflow-wrap:anywhere] whitespace-pre-wrap" : "whitespace-pre")}
            >
              {colored(lines[item.index] ?? "", colors?.[item.index] ?? null)}
            </span>
          </div>
        ))}
      </div>
    </section>
  );
}

function colored(text: string, spans: Lines[number] | null): ReactNode {
  if (!spans) return text;
  return spans.map(([part, color], at) => (
    <span key={at} style={color ? { color } : undefined}>
      {part}
    </span>
  ));
}

/** Return the colors of the whole text; null until they are known, and for plain text. */
function useLineColors(text: string, language: string): Lines | null {
  const [known, setKnown] = useState<{ text: string; lines: Lines | null } | null>(null);
  useEffect(() => {
    let isGone = false;
    void highlight(text, language).then((lines) => !isGone && setKnown({ text, lines }));
    return () => {
      isGone = true;
    };
  }, [text, language]);
  return known?.text === text ? known.lines : (cachedLines(text, language) ?? null);
}
