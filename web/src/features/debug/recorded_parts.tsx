/** The parts of recorded messages and answers, as plain text. */
import { Brain, File as FileIcon, Globe, Wrench } from "lucide-react";
import { type ReactNode, useState } from "react";
import type { RecordPart } from "@/api/debug";
import { cutLength, parsedJson } from "@/chat/debug_texts";
import { Button } from "@/ui/button";
import { Marked } from "./record_labels";

const FOLD_CHARS = 1_200;
const FOLD_LINES = 14;
// Instructions are the same in every step and often longer than everything else.
const BRIEF_CHARS = 240;
const BRIEF_LINES = 3;
// A text that is never folded, if it has few lines.
const FEW_CHARS = 400;
const MOST_CHARS = 200_000;

function folded(text: string, isBrief: boolean): string {
  const lines = text.slice(0, isBrief ? BRIEF_CHARS : FOLD_CHARS).split("\n");
  return lines.slice(0, isBrief ? BRIEF_LINES : FOLD_LINES).join("\n");
}

interface LongTextProps {
  text: string;
  wanted: string;
  label: string;
  /** Folds the text to its first lines. */
  isBrief?: boolean;
}

/** A text of a record. A long one is folded, unless it contains the searched words. */
export function LongText({ text, wanted, label, isBrief = false }: LongTextProps) {
  const [chosen, setChosen] = useState<boolean | null>(null);
  const head = folded(text, isBrief);
  // A button to show a few more characters takes more room than the characters.
  const isLong = text.length > FEW_CHARS && head.length < text.length;
  const isHit = wanted !== "" && text.toLowerCase().includes(wanted.toLowerCase());
  const isOpen = !isLong || (chosen ?? isHit);
  const shown = isOpen ? text.slice(0, MOST_CHARS) : `${head.trimEnd()} …`;
  return (
    <div>
      <pre className="font-mono text-code break-words whitespace-pre-wrap">
        <Marked text={shown} wanted={wanted} />
      </pre>
      {isLong && (
        <Button
          size="small"
          kind="ghost"
          className="-ml-2 text-muted"
          aria-expanded={isOpen}
          aria-label={isOpen ? `Show less of ${label}` : `Show all of ${label}`}
          onClick={() => setChosen(!isOpen)}
        >
          {isOpen ? "Show less" : `Show all ${text.length.toLocaleString("en")} characters`}
        </Button>
      )}
      {isOpen && text.length > MOST_CHARS && (
        <p className="text-small text-muted">The rest is too long to show. Copy or export it to read all of it.</p>
      )}
    </div>
  );
}

/** Return arguments or results with indentation if they are JSON. */
function pretty(text: string): string {
  const value = parsedJson(text);
  return value === undefined ? text : JSON.stringify(value, null, 2);
}

interface PartProps {
  part: RecordPart;
  wanted: string;
  label: string;
  isBrief?: boolean;
}

/** One part of a recorded message or answer. */
export function PartView({ part, wanted, label, isBrief = false }: PartProps) {
  switch (part.type.replaceAll("_", "-")) {
    case "text":
      return (
        <Cut part={part}>
          <LongText text={part.text ?? ""} wanted={wanted} label={label} isBrief={isBrief} />
        </Cut>
      );
    case "reasoning":
      return (
        <Headed icon={<Brain />} title="Reasoning">
          <Cut part={part}>
            {part.text ? (
              <LongText text={part.text} wanted={wanted} label={label} />
            ) : (
              <p className="text-small text-muted">The provider did not return its text.</p>
            )}
          </Cut>
        </Headed>
      );
    case "tool-call":
      return (
        <Headed icon={<Wrench />} title={`Calls ${part.tool_name ?? "a tool"}`} id={part.tool_call_id ?? null}>
          <Cut part={part}>
            <LongText text={pretty(part.arguments ?? part.text ?? "")} wanted={wanted} label={label} />
          </Cut>
        </Headed>
      );
    case "tool-result":
      return (
        <Headed
          icon={<Wrench />}
          title={`${part.is_error ? "Error" : "Result"} of ${part.tool_name ?? "a tool"}`}
          id={part.tool_call_id ?? null}
        >
          <Cut part={part}>
            <LongText text={pretty(part.result ?? part.text ?? "")} wanted={wanted} label={label} />
          </Cut>
        </Headed>
      );
    case "source":
      return (
        <p className="flex items-start gap-2 text-small">
          <Globe aria-hidden className="mt-0.5 size-3.5 shrink-0 text-muted" />
          <span className="min-w-0 break-words">
            <Marked text={part.title || "Source"} wanted={wanted} />{" "}
            {part.url && <span className="text-muted">{part.url}</span>}
          </span>
        </p>
      );
    case "file":
    case "media":
    case "image":
      return (
        <p className="flex items-start gap-2 text-small">
          <FileIcon aria-hidden className="mt-0.5 size-3.5 shrink-0 text-muted" />
          <span className="min-w-0 break-words">
            {part.filename || "File"} <span className="text-muted">{part.media_type}; its bytes are not recorded</span>
          </span>
        </p>
      );
    default:
      return (
        <Headed icon={<FileIcon />} title={part.type}>
          <LongText text={JSON.stringify(part, null, 2)} wanted={wanted} label={label} />
        </Headed>
      );
  }
}

function Headed({
  icon,
  title,
  id = null,
  children,
}: {
  icon: ReactNode;
  title: string;
  id?: string | null;
  children: ReactNode;
}) {
  return (
    <div>
      <p className="mb-1 flex items-center gap-1.5 text-small text-muted [&_svg]:size-3.5 [&_svg]:shrink-0">
        {icon}
        <span className="min-w-0 truncate font-medium text-text">{title}</span>
        {id && <span className="min-w-0 truncate font-mono">{id}</span>}
      </p>
      {children}
    </div>
  );
}

/** A part, with a note if the recorder cut it. */
function Cut({ part, children }: { part: RecordPart; children: ReactNode }) {
  const whole = cutLength(part);
  if (whole === null) return children;
  const kept = (part.text ?? part.arguments ?? part.result ?? "").length;
  return (
    <>
      {children}
      <p className="text-small text-warn">
        The record has the first {kept.toLocaleString("en")} of {whole.toLocaleString("en")} characters. The model got
        all of them.
      </p>
    </>
  );
}
