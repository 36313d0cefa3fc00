import { useEffect, useState } from "react";
import type { RecordMessage, Step } from "@/api/debug";
import { firstShown, messageLength, messageText } from "@/chat/debug_texts";
import { CopyButton } from "@/features/timeline/code_block";
import { Button } from "@/ui/button";
import { cx } from "@/ui/cx";
import { PartView } from "./recorded_parts";

const MORE_MESSAGES = 50;

/** The prompt as the model saw it. Messages that the previous step did not have are marked. */
export function Prompt({ step, wanted }: { step: Step; wanted: string }) {
  const { messages } = step.request;
  const shared = Math.min(step.shared_messages, messages.length);
  const [from, setFrom] = useState(() => firstShown(messages.length, shared));
  // A search may have found an earlier message.
  useEffect(() => {
    if (wanted === "") return;
    const hit = messages.findIndex((message, index) => index >= shared && has(message, wanted));
    if (hit >= 0) setFrom((before) => Math.min(before, hit));
  }, [messages, shared, wanted]);
  if (messages.length === 0) {
    return (
      <p className="text-muted">
        {step.metadata.truncated
          ? "The record of this run was full, so this prompt was not recorded."
          : "The prompt has no messages."}
      </p>
    );
  }
  const hasChanged = step.cache?.broke_at === shared;
  return (
    <div className="flex flex-col gap-2">
      {from > 0 && (
        <Button size="small" className="self-center" onClick={() => setFrom(Math.max(0, from - MORE_MESSAGES))}>
          Show {Math.min(from, MORE_MESSAGES)} earlier {from === 1 ? "message" : "messages"}
          {from > MORE_MESSAGES && ` of ${from}`}
        </Button>
      )}
      {messages.slice(from).map((message, offset) => {
        const index = from + offset;
        return (
          <div key={index} className="flex flex-col gap-2">
            {index === shared && step.number > 1 && (
              <Divider
                isChange={hasChanged}
                text={
                  hasChanged
                    ? `Changed since step ${step.number - 1}`
                    : `New since step ${step.number - 1}: ${counted(messages.length - shared)}`
                }
              />
            )}
            <MessageCard message={message} index={index} isNew={index >= shared && step.number > 1} wanted={wanted} />
          </div>
        );
      })}
      {shared === messages.length && <Divider isChange={false} text={`No new message since step ${step.number - 1}`} />}
    </div>
  );
}

function counted(count: number): string {
  return count === 1 ? "1 message" : `${count} messages`;
}

function has(message: RecordMessage, wanted: string): boolean {
  return messageText(message).toLowerCase().includes(wanted.toLowerCase());
}

function Divider({ text, isChange }: { text: string; isChange: boolean }) {
  return (
    <p className={cx("flex items-center gap-3 py-1 text-small font-medium", isChange ? "text-warn" : "text-accent")}>
      <span aria-hidden className="h-px flex-1 bg-current opacity-50" />
      {text}
      <span aria-hidden className="h-px flex-1 bg-current opacity-50" />
    </p>
  );
}

const ROLES: Record<string, string> = { system: "System", user: "User", assistant: "Model", tool: "Tool" };

interface MessageProps {
  message: RecordMessage;
  index: number;
  isNew: boolean;
  wanted: string;
}

function MessageCard({ message, index, isNew, wanted }: MessageProps) {
  const name = `message ${index + 1}`;
  return (
    <section
      aria-label={`Message ${index + 1}, ${message.role}${isNew ? ", new" : ""}`}
      className={cx("rounded-lg border bg-bg1", isNew ? "border-line border-l-3 border-l-accent" : "border-line")}
    >
      <header className="flex items-center gap-2 border-b border-line py-1 pr-1 pl-3 text-small text-muted">
        <span className="font-medium text-text">{ROLES[message.role] ?? message.role}</span>
        <span>{index + 1}</span>
        {isNew && <span className="rounded-full bg-bg3 px-1.5 text-accent">new</span>}
        <span className="flex-1" />
        <span className="tabular-nums">{messageLength(message).toLocaleString("en")} characters</span>
        <CopyButton text={() => messageText(message)} label={`Copy ${name}`} />
      </header>
      <div className="flex flex-col gap-3 px-3 py-2">
        {message.parts.length === 0 && <p className="text-small text-muted">Empty.</p>}
        {message.parts.map((part, at) => (
          <PartView key={at} part={part} wanted={wanted} label={name} isBrief={message.role === "system"} />
        ))}
      </div>
    </section>
  );
}
