import { ArrowDown, ArrowLeft, ArrowUp, ChevronRight, MessageSquareText, RotateCcw } from "lucide-react";
import { Tabs } from "radix-ui";
import { type ReactNode, type Ref, useState } from "react";
import type { RecordResponse, RecordTool, Step, StepSummary } from "@/api/debug";
import { sentence } from "@/api/errors";
import { cacheNote, outcomeOf, partText, precise, promptTokens, tookMs } from "@/chat/debug_texts";
import { Attempts } from "@/features/debug/attempts";
import { JsonView } from "@/features/debug/json_view";
import { StepTime } from "@/features/debug/timing";
import { CopyButton } from "@/features/timeline/code_block";
import { useNow } from "@/state/session_hooks";
import { Button, IconButton } from "@/ui/button";
import { compact, dollars } from "@/ui/money";
import { Notice } from "@/ui/notice";
import { Spinner } from "@/ui/spinner";
import { Fact, Figures, StatusMark, tokenWords } from "./record_labels";
import { LongText, PartView } from "./recorded_parts";
import { Prompt } from "./recorded_prompt";

export interface StepActions {
  /** Goes to another step; null if there is none. */
  onPrevious: (() => void) | null;
  onNext: (() => void) | null;
  /** Goes back to the list, where the list is not beside the step; null if there is no list. */
  onBack: (() => void) | null;
  /** Scrolls the conversation to the answer of this step; null if it has none. */
  onShowMessage: (() => void) | null;
  /** Opens the replay; null if the user may not replay. */
  onReplay: (() => void) | null;
}

interface Props {
  chat: string;
  run: string;
  summary: StepSummary;
  /** Whether the run goes on, so that a planned retry is made. */
  isRunOpen?: boolean;
  /** The number of steps of the run. */
  count: number;
  /** The step with its prompt; undefined while it loads. */
  step: Step | undefined;
  error: unknown;
  onRetry: () => void;
  wanted: string;
  actions: StepActions;
  heading?: Ref<HTMLHeadingElement>;
}

/** One step: the model call with its prompt, its answer and its attempts. */
export function StepView(props: Props) {
  const { chat, run, summary, isRunOpen = false, count, step, error, onRetry, wanted, actions, heading } = props;
  const isRunning = summary.status === "in_progress";
  const now = useNow(500, isRunning);
  const ms = tookMs(summary, now);
  return (
    <div className="flex flex-col gap-3 p-3">
      <header className="flex flex-col gap-1">
        <div className="flex flex-wrap items-center gap-1">
          {actions.onBack && (
            <IconButton label="Back to the steps" onClick={actions.onBack} className="-ml-2 @3xl:hidden">
              <ArrowLeft />
            </IconButton>
          )}
          <h3 ref={heading} tabIndex={-1} className="flex min-w-0 items-center gap-2 font-semibold outline-none">
            <StatusMark status={summary.status} />
            Step {summary.number}
            <span className="font-normal text-muted">of {count}</span>
          </h3>
          <span className="flex-1" />
          {count > 1 && (
            <>
              <IconButton label="Previous step" disabled={!actions.onPrevious} onClick={() => actions.onPrevious?.()}>
                <ArrowUp />
              </IconButton>
              <IconButton label="Next step" disabled={!actions.onNext} onClick={() => actions.onNext?.()}>
                <ArrowDown />
              </IconButton>
            </>
          )}
        </div>
        <Figures
          items={[
            outcomeOf(summary, isRunOpen),
            ms === null ? null : precise(ms),
            tokenWords(summary.usage),
            summary.cost_micros === null ? null : dollars(summary.cost_micros),
            summary.model,
            summary.operation === "generate" ? "not streamed" : null,
          ]}
        />
        <div className="flex flex-wrap gap-2 pt-1">
          {actions.onShowMessage && (
            <Button size="small" onClick={actions.onShowMessage}>
              <MessageSquareText aria-hidden className="size-3.5" />
              Show in conversation
            </Button>
          )}
          {actions.onReplay && (
            <Button size="small" onClick={actions.onReplay} disabled={!step}>
              <RotateCcw aria-hidden className="size-3.5" />
              Replay
            </Button>
          )}
        </div>
      </header>
      <StepTime step={summary} now={now} />
      <Errors step={summary} />
      {error ? (
        <Notice kind="error">
          {sentence(error)}{" "}
          <Button size="small" onClick={onRetry}>
            Try again
          </Button>
        </Notice>
      ) : step ? (
        <StepTabs chat={chat} run={run} step={step} summary={summary} wanted={wanted} />
      ) : (
        <p role="status" className="flex items-center gap-2 text-muted">
          <Spinner /> Loading the prompt
        </p>
      )}
    </div>
  );
}

/** The error that ended the step, and the errors of earlier tries. */
function Errors({ step }: { step: StepSummary }) {
  const prior = step.metadata.prior_errors ?? [];
  const { error } = step;
  if (!error && prior.length === 0) return null;
  return (
    <section aria-label="Errors" className="rounded-lg border border-line bg-bg2 px-3 py-2">
      {error && (
        <div>
          <p className="font-medium text-danger">
            {[error.provider_status ? `HTTP ${error.provider_status}` : "", (error.kind ?? "").replaceAll("_", " ")]
              .filter(Boolean)
              .join(", ") || "Failed"}
          </p>
          <p className="break-words whitespace-pre-wrap">{error.message}</p>
          {error.detail && <p className="text-small break-words whitespace-pre-wrap text-muted">{error.detail}</p>}
          <Figures items={[error.code, error.type, error.request_id ? `request ${error.request_id}` : null]} />
        </div>
      )}
      {prior.length > 0 && (
        <div className={error ? "mt-2" : ""}>
          <p className="text-small text-muted">
            {prior.length === 1 ? "An earlier try failed" : `${prior.length} earlier tries failed`}
          </p>
          <ul>
            {prior.map((one, index) => (
              <li key={index} className="text-small break-words">
                <span className="text-warn">
                  Try {one.generation_attempt ?? index + 1}, {(one.kind ?? "error").replaceAll("_", " ")}:
                </span>{" "}
                {one.message}
              </li>
            ))}
          </ul>
        </div>
      )}
    </section>
  );
}

interface TabsProps {
  chat: string;
  run: string;
  step: Step;
  summary: StepSummary;
  wanted: string;
}

// The chosen tab stays when another step is shown.
let lastTab = "input";

function StepTabs({ chat, run, step, summary, wanted }: TabsProps) {
  const [tab, setTab] = useState(lastTab);
  const options = optionsOf(step);
  const { tools = [] } = step.request;
  const all: { id: string; label: string; content: ReactNode }[] = [
    { id: "input", label: `Input ${step.request.messages.length}`, content: <Prompt step={step} wanted={wanted} /> },
    { id: "output", label: "Output", content: <Output response={step.response} wanted={wanted} /> },
    { id: "tools", label: `Tools ${tools.length}`, content: <Tools tools={tools} wanted={wanted} /> },
    { id: "options", label: `Options ${options.length}`, content: <Options options={options} /> },
    { id: "usage", label: "Usage", content: <UsageTab step={summary} /> },
    // The offline model sends no HTTP requests, and those of a chat that is not recorded are not kept.
    ...(summary.attempts.length > 0
      ? [
          {
            id: "attempts",
            label: `Attempts ${summary.attempts.length}`,
            content: (
              <Attempts
                place={{ chat, run, step: step.id }}
                attempts={summary.attempts}
                transport={summary.metadata.transport}
              />
            ),
          },
        ]
      : []),
  ];
  return (
    <>
      <CacheLine step={summary} onDetails={() => setTab("usage")} />
      <Tabs.Root
        value={tab}
        onValueChange={(next) => {
          lastTab = next;
          setTab(next);
        }}
      >
        <Tabs.List
          aria-label="Parts of the step"
          className="-mx-3 mb-3 flex gap-1 overflow-x-auto border-b border-line px-3"
        >
          {all.map((one) => (
            <Tabs.Trigger
              key={one.id}
              value={one.id}
              className="-mb-px shrink-0 border-b-2 border-transparent px-2 py-1.5 whitespace-nowrap text-muted -outline-offset-2 hover:text-text data-[state=active]:border-accent data-[state=active]:text-text pointer-coarse:min-h-11"
            >
              {one.label}
            </Tabs.Trigger>
          ))}
        </Tabs.List>
        {all.map((one) => (
          <Tabs.Content key={one.id} value={one.id} className="-outline-offset-1">
            {one.content}
          </Tabs.Content>
        ))}
      </Tabs.Root>
    </>
  );
}

/** One line about tokens that the provider did not have in its cache. The details are on the Usage tab. */
function CacheLine({ step, onDetails }: { step: StepSummary; onDetails: () => void }) {
  const { cache } = step;
  const note = cacheNote(cache, step.number);
  const { uncached_tokens: missed = 0, cost_micros: cost } = cache ?? {};
  if (!note || missed === 0 || cache?.reason === "first_step") return null;
  return (
    <p className="flex flex-wrap items-baseline gap-x-2 rounded-lg border border-line px-3 py-1.5 text-small">
      <span className="text-warn">
        {compact(missed)} tokens were not cached{cost == null ? "" : `, ${dollars(cost)}`}.
      </span>
      <span className="text-muted">{note.title}.</span>
      <button type="button" onClick={onDetails} className="text-accent underline">
        Why was this not cached?
      </button>
    </p>
  );
}

function Output({ response, wanted }: { response: RecordResponse | null; wanted: string }) {
  if (!response) return <p className="text-muted">There is no answer.</p>;
  const { content = [], warnings = [] } = response;
  return (
    <div className="flex flex-col gap-3">
      <div className="flex items-center gap-2">
        <Figures
          items={[
            response.finish_reason ? `Ended by ${response.finish_reason.replaceAll("_", " ")}` : null,
            response.finish_detail,
          ]}
        />
        <span className="flex-1" />
        {content.length > 0 && <CopyButton text={() => content.map(partText).join("\n\n")} label="Copy output" />}
      </div>
      {response.raw_text_length != null ? (
        <p className="text-muted">
          A structured answer of {response.raw_text_length.toLocaleString("en")} characters. Its text is not recorded.
        </p>
      ) : (
        content.length === 0 && <p className="text-muted">The answer is empty.</p>
      )}
      {content.map((part, index) => (
        <div key={index} className="rounded-lg border border-line px-3 py-2">
          <PartView part={part} wanted={wanted} label={`part ${index + 1}`} />
        </div>
      ))}
      {warnings.map((warning, index) => (
        <Notice key={index} kind="warn">
          {[warning.setting, warning.message].filter((one) => typeof one === "string" && one).join(": ") ||
            String(warning.type ?? "Warning")}
        </Notice>
      ))}
    </div>
  );
}

function Tools({ tools, wanted }: { tools: RecordTool[]; wanted: string }) {
  if (tools.length === 0) return <p className="text-muted">The model had no tools.</p>;
  return (
    <ul className="flex flex-col gap-2">
      {tools.map((tool) => (
        <li key={tool.name} className="rounded-lg border border-line">
          <details className="group/tool">
            <summary className="flex list-none items-baseline gap-2 rounded-lg px-2 py-2 hover:bg-bg2">
              <ChevronRight
                aria-hidden
                className="size-4 shrink-0 self-center text-muted transition-transform group-open/tool:rotate-90"
              />
              <span className="font-mono text-small font-medium">{tool.name}</span>
              <span className="min-w-0 flex-1 truncate text-small text-muted group-open/tool:invisible">
                {tool.description}
              </span>
              {tool.type !== "function" && <span className="text-small text-muted">{tool.type}</span>}
            </summary>
            <div className="flex flex-col gap-2 px-3 pb-3">
              {tool.description && <LongText text={tool.description} wanted={wanted} label={tool.name} />}
              {tool.input_schema != null && <JsonView value={tool.input_schema} label={`schema of ${tool.name}`} />}
            </div>
          </details>
        </li>
      ))}
    </ul>
  );
}

/** Return the settings of a call that were set, with their names. */
function optionsOf(step: Step): [string, string][] {
  const { request } = step;
  const named: [string, unknown][] = [
    ...Object.entries(request.options ?? {}),
    ["effort", request.effort],
    ["tool_choice", request.tool_choice],
    ["schema_name", request.schema_name],
    ["structured_output", request.structured_output || null],
    ["provider_options", (request.provider_option_names ?? []).join(", ")],
  ];
  return named.flatMap(([name, value]): [string, string][] => {
    if (value === null || value === undefined || value === "") return [];
    return [[name.replaceAll("_", " "), typeof value === "string" ? value : JSON.stringify(value)]];
  });
}

function Options({ options }: { options: [string, string][] }) {
  if (options.length === 0) return <p className="text-muted">No option was set. The defaults of the provider apply.</p>;
  return (
    <dl className="grid grid-cols-[auto_1fr] gap-x-6 gap-y-1">
      {options.map(([name, value]) => (
        <Fact key={name} name={name}>
          <span className="font-mono text-small">{value}</span>
        </Fact>
      ))}
    </dl>
  );
}

function UsageTab({ step }: { step: StepSummary }) {
  const { usage, cache } = step;
  const note = cacheNote(cache, step.number);
  const { uncached_tokens: missed = 0, cost_micros: cost } = cache ?? {};
  const rows: [string, number | null | undefined][] = usage
    ? [
        ["Input, not from the cache", usage.input_tokens],
        ["Input, from the cache", usage.cache_read_tokens],
        ["Input, written to the cache", usage.cache_creation_tokens],
        ["Output", usage.output_tokens],
        ["of which reasoning", usage.reasoning_tokens],
        ["Total", usage.total_tokens],
      ]
    : [];
  return (
    <div className="flex flex-col gap-4">
      {usage ? (
        <>
          <CacheBar usage={usage} />
          <dl className="grid max-w-80 grid-cols-[1fr_auto] gap-x-6 gap-y-1 tabular-nums [&>dd]:text-right">
            {rows
              .filter(([, value]) => value !== undefined && value !== null)
              .map(([name, value]) => (
                <Fact key={name} name={name}>
                  {(value ?? 0).toLocaleString("en")}
                </Fact>
              ))}
            {step.cost_micros !== null && <Fact name="Cost">{dollars(step.cost_micros)}</Fact>}
          </dl>
        </>
      ) : (
        <p className="text-muted">The provider reported no usage.</p>
      )}
      {note && (
        <section aria-label="Why was this not cached?" className="rounded-lg border border-line px-3 py-2">
          <h4 className="font-medium">Why was this not cached?</h4>
          <p className="mt-1">
            <span className="font-medium">{note.title}.</span> {note.text}
          </p>
          {missed > 0 && (
            <p className="mt-1 text-small text-muted">
              {missed.toLocaleString("en")} tokens were not from the cache
              {cost == null ? "" : ` and cost ${dollars(cost)}`}.
            </p>
          )}
        </section>
      )}
    </div>
  );
}

/** The input tokens as a bar: from the cache, written to it, and neither. */
function CacheBar({ usage }: { usage: NonNullable<StepSummary["usage"]> }) {
  const whole = promptTokens(usage);
  if (whole === 0) return null;
  const parts = [
    { name: "from the cache", count: usage.cache_read_tokens ?? 0, look: "bg-ok" },
    { name: "written to the cache", count: usage.cache_creation_tokens ?? 0, look: "bg-accent" },
    { name: "not from the cache", count: usage.input_tokens ?? 0, look: "bg-control" },
  ].filter((part) => part.count > 0);
  return (
    <div>
      <div
        role="img"
        aria-label={`Input: ${parts.map((part) => `${part.count} tokens ${part.name}`).join(", ")}`}
        className="flex h-3 gap-px overflow-hidden rounded-full"
      >
        {parts.map((part) => (
          <span key={part.name} className={part.look} style={{ width: `${(100 * part.count) / whole}%` }} />
        ))}
      </div>
      <ul className="mt-1.5 flex flex-wrap gap-x-4 gap-y-1 text-small text-muted tabular-nums">
        {parts.map((part) => (
          <li key={part.name} className="flex items-center gap-1.5">
            <span aria-hidden className={`size-2.5 rounded-xs ${part.look}`} />
            {Math.round((100 * part.count) / whole)} % {part.name}
          </li>
        ))}
      </ul>
    </div>
  );
}
