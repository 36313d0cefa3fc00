import { ChevronRight } from "lucide-react";
import { useState } from "react";
import type { Attempt, AttemptSummary } from "@/api/debug";
import { sentence } from "@/api/errors";
import { attemptError, isFailed, precise } from "@/chat/debug_texts";
import { BodyView } from "@/features/debug/body_view";
import { CopyButton } from "@/features/timeline/code_block";
import { useAttempt } from "@/state/debug_records";
import { Button } from "@/ui/button";
import { cx } from "@/ui/cx";
import { Notice } from "@/ui/notice";
import { Moment } from "@/ui/relative_time";
import { Spinner } from "@/ui/spinner";
import { Fact, Figures } from "./record_labels";

interface Place {
  chat: string;
  run: string;
  step: string;
}

/** The HTTP exchanges of a step. Their bodies are loaded when one is opened. */
export function Attempts({
  place,
  attempts,
  transport,
}: {
  place: Place;
  attempts: AttemptSummary[];
  transport: string | null | undefined;
}) {
  if (attempts.length === 0) {
    return (
      <p className="text-muted">
        {transport === "unobserved"
          ? "The HTTP exchanges of this call were not recorded. Failed turns of chats that are not recorded have none, and neither have providers with a library of their own."
          : "No HTTP exchange was recorded."}
      </p>
    );
  }
  return (
    <ol className="flex flex-col gap-2">
      {attempts.map((attempt) => (
        <li key={attempt.number}>
          <AttemptCard place={place} attempt={attempt} />
        </li>
      ))}
    </ol>
  );
}

function statusWords(attempt: AttemptSummary): string {
  if (attempt.response_status !== null) return String(attempt.response_status);
  return attempt.status === "aborted" ? "stopped" : "no response";
}

function AttemptCard({ place, attempt }: { place: Place; attempt: AttemptSummary }) {
  const [isOpen, setOpen] = useState(false);
  const { data, error: problem, refetch } = useAttempt(place.chat, place.run, place.step, attempt.number, isOpen);
  const hasFailed = isFailed(attempt);
  const error = attemptError(attempt);
  const look = hasFailed ? "text-danger" : attempt.status === "aborted" ? "text-muted" : "text-ok";
  return (
    <section aria-label={`Attempt ${attempt.number}`} className="rounded-lg border border-line">
      <button
        type="button"
        aria-expanded={isOpen}
        onClick={() => setOpen(!isOpen)}
        className="flex w-full flex-wrap items-center gap-x-2 gap-y-0.5 rounded-lg px-2 py-2 text-left hover:bg-bg2"
      >
        <ChevronRight
          aria-hidden
          className={cx("size-4 shrink-0 text-muted transition-transform", isOpen && "rotate-90")}
        />
        <span className="font-medium">Attempt {attempt.number}</span>
        <span className={cx("font-mono text-small", look)}>{statusWords(attempt)}</span>
        <span className="min-w-0 flex-1 truncate font-mono text-small text-muted">
          {attempt.method} {attempt.path}
        </span>
        <span className="text-small text-muted tabular-nums">{precise(attempt.duration_ms)}</span>
        {error && (
          <span className={cx("w-full pl-6 text-small break-words", hasFailed ? "text-danger" : "text-muted")}>
            {error}
          </span>
        )}
        {attempt.retry_kind && (
          <span className="w-full pl-6 text-small text-muted">
            Tried again{attempt.retry_delay_ms === null ? "" : ` after ${precise(attempt.retry_delay_ms)}`}:{" "}
            {attempt.retry_kind.replaceAll("_", " ")}
          </span>
        )}
      </button>
      {isOpen && (
        <div className="border-t border-line p-3">
          {problem ? (
            <Notice kind="error">
              {sentence(problem)}{" "}
              <Button size="small" onClick={() => void refetch()}>
                Try again
              </Button>
            </Notice>
          ) : data ? (
            <AttemptBody attempt={data} />
          ) : (
            <p role="status" className="flex items-center gap-2 text-muted">
              <Spinner /> Loading the bodies
            </p>
          )}
        </div>
      )}
    </section>
  );
}

type Shown = "response" | "request" | "headers";
const SHOWN: Record<Shown, string> = { response: "Response", request: "Request", headers: "Headers" };

export function AttemptBody({ attempt }: { attempt: Attempt }) {
  const [shown, setShown] = useState<Shown>("response");
  return (
    <div className="flex flex-col gap-3">
      <Figures
        items={[
          <Moment key="at" at={attempt.started_at} />,
          attempt.ttfb_ms === null ? null : `first byte after ${precise(attempt.ttfb_ms)}`,
          `took ${precise(attempt.duration_ms)}`,
          attempt.generation_attempt > 1 ? `try ${attempt.generation_attempt} of this step` : null,
        ]}
      />
      <p className="font-mono text-small break-all">{attempt.url}</p>
      <fieldset className="flex gap-1">
        <legend className="sr-only">What is shown</legend>
        {(Object.keys(SHOWN) as Shown[]).map((one) => (
          <Button
            key={one}
            size="small"
            kind="ghost"
            aria-pressed={shown === one}
            className={shown === one ? "bg-bg3!" : "text-muted"}
            onClick={() => setShown(one)}
          >
            {SHOWN[one]}
          </Button>
        ))}
      </fieldset>
      {shown === "response" && (
        <BodyView
          key="response"
          body={attempt.response_body}
          headers={attempt.response_headers}
          label={`response ${attempt.number}`}
        />
      )}
      {shown === "request" && (
        <BodyView
          key="request"
          body={attempt.request_body}
          headers={attempt.request_headers}
          label={`request ${attempt.number}`}
        />
      )}
      {shown === "headers" && (
        <>
          <Headers title="Request headers" headers={attempt.request_headers} />
          <Headers title="Response headers" headers={attempt.response_headers} />
        </>
      )}
    </div>
  );
}

function Headers({ title, headers }: { title: string; headers: Record<string, string> }) {
  const all = Object.entries(headers);
  return (
    <section aria-label={title}>
      <h4 className="flex items-center gap-2 text-small font-medium">
        {title}
        {all.length > 0 && (
          <CopyButton
            text={() => all.map(([name, value]) => `${name}: ${value}`).join("\n")}
            label={`Copy ${title.toLowerCase()}`}
          />
        )}
      </h4>
      {all.length === 0 ? (
        <p className="text-small text-muted">None.</p>
      ) : (
        <dl className="grid grid-cols-[auto_1fr] gap-x-3 gap-y-0.5 font-mono text-small">
          {all.map(([name, value]) => (
            <Fact key={name} name={name}>
              <span className="break-all">{value}</span>
            </Fact>
          ))}
        </dl>
      )}
    </section>
  );
}
