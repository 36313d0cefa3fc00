import { skipToken, useQuery } from "@tanstack/react-query";
import { type ReactNode, useMemo, useState } from "react";
import { type Comparison, compareRuns, listRuns, type RecordMessage, type Run, type StepPair } from "@/api/debug";
import { sentence } from "@/api/errors";
import { messageText, precise, promptTokens, runLabel } from "@/chat/debug_texts";
import {
  comparable,
  differenceWords,
  excerpt,
  firstOther,
  isSameTurn,
  promptSentence,
  type TextDifference,
  textDifference,
} from "@/chat/run_comparison";
import { RecordList } from "@/features/debug/record_list";
import { debugKeys } from "@/state/debug_records";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { compact, dollars } from "@/ui/money";
import { Notice } from "@/ui/notice";
import { Moment, shortTime } from "@/ui/relative_time";
import { Select } from "@/ui/select";
import { Spinner } from "@/ui/spinner";
import { Figures, StatusMark } from "./record_labels";
import { PartView } from "./recorded_parts";

const RUNS = 100;

interface Props {
  chat: string;
  run: Run;
  onClose: () => void;
  /** Opens a step of this run, by its id. */
  onStep: (step: string) => void;
}

/** Compares a run with another one of the chat: tokens, cost, time, and where their prompts begin to differ. */
export function CompareDialog({ chat, run, onClose, onStep }: Props) {
  const [chosen, setChosen] = useState<string | null>(null);
  const runs = useQuery({
    queryKey: [...debugKeys.chat(chat), "others", run.kind],
    queryFn: ({ signal }) => listRuns(chat, { kind: run.kind, limit: RUNS }, signal),
    retry: false,
  });
  const others = useMemo(() => comparable(run, runs.data?.runs ?? []), [run, runs.data]);
  const other = others.find((one) => one.id === chosen) ?? firstOther(run, others);
  const comparison = useQuery({
    queryKey: [...debugKeys.chat(chat), "compare", run.id, other?.id, run.updated_at, other?.updated_at],
    queryFn: other ? ({ signal }) => compareRuns(chat, run.id, other.id, signal) : skipToken,
    retry: false,
  });
  const error = runs.error ?? comparison.error;
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title="Compare runs"
      description={runLabel(run)}
      wide
      footer={<Button onClick={onClose}>Close</Button>}
    >
      <div className="flex flex-col gap-5">
        {other && (
          <Select
            label="Compare with"
            value={other.id}
            onChange={setChosen}
            options={others.map((one) => ({
              value: one.id,
              label: [shortTime(one.started_at), isSameTurn(one, run) ? "the same message" : runLabel(one), one.model]
                .filter(Boolean)
                .join(", "),
            }))}
          />
        )}
        {error ? (
          <Notice kind="error">{sentence(error)}</Notice>
        ) : runs.data && !other ? (
          <p className="text-muted">There is no other recorded run of this kind in this chat.</p>
        ) : comparison.data ? (
          <ComparisonView
            comparison={comparison.data}
            onStep={(step) => {
              onClose();
              onStep(step);
            }}
          />
        ) : (
          <p role="status" className="flex items-center gap-2 text-muted">
            <Spinner /> Comparing
          </p>
        )}
      </div>
    </Dialog>
  );
}

/** Two runs side by side: their figures, the first difference of their prompts, and their steps in pairs. */
export function ComparisonView({ comparison, onStep }: { comparison: Comparison; onStep: (step: string) => void }) {
  return (
    <>
      <FigureTable comparison={comparison} />
      <Prompts comparison={comparison} />
      <Pairs pairs={comparison.steps} onStep={onStep} />
    </>
  );
}

const count = (value: number) => value.toLocaleString("en");

function FigureTable({ comparison: { one, other } }: { comparison: Comparison }) {
  const rows: [string, number | null, number | null, (value: number) => string][] = [
    ["Steps", one.figures.step_count, other.figures.step_count, count],
    ["Input tokens", promptTokens(one.figures), promptTokens(other.figures), compact],
    ["From the cache", one.figures.cache_read_tokens, other.figures.cache_read_tokens, compact],
    ["Output tokens", one.figures.output_tokens, other.figures.output_tokens, compact],
    ["Cost", one.figures.cost_micros, other.figures.cost_micros, dollars],
    ["First token", one.figures.ttft_ms, other.figures.ttft_ms, precise],
    ["Time", one.figures.duration_ms, other.figures.duration_ms, precise],
  ];
  return (
    <div className="overflow-x-auto">
      <table className="w-full text-left tabular-nums">
        <thead>
          <tr className="border-b border-line align-bottom">
            <td />
            {(
              [
                ["This run", one.run],
                ["Other run", other.run],
              ] as const
            ).map(([title, run]) => (
              <th key={title} scope="col" className="py-1.5 pr-4 font-semibold">
                <span className="flex items-center gap-1.5">
                  <StatusMark status={run.status} /> {title}
                </span>
                <span className="hidden text-small font-normal text-muted sm:block">
                  <Moment at={run.started_at} />
                </span>
                <span className="block text-small font-normal break-words text-muted">{run.model}</span>
              </th>
            ))}
            <th scope="col" className="py-1.5 font-semibold">
              This run has
            </th>
          </tr>
        </thead>
        <tbody>
          {rows.map(([name, left, right, shown]) => (
            <tr key={name} className="border-b border-line">
              <th scope="row" className="py-1 pr-4 font-normal text-muted">
                {name}
              </th>
              <td className="py-1 pr-4">{left === null ? "not known" : shown(left)}</td>
              <td className="py-1 pr-4">{right === null ? "not known" : shown(right)}</td>
              <td className="py-1">{differenceWords(left, right, shown)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Prompts({ comparison }: { comparison: Comparison }) {
  const { message, tools, steps } = comparison;
  const settings = useMemo(() => changedSettings(steps), [steps]);
  const difference = message && textDifference(textOf(message.one), textOf(message.other));
  return (
    <section aria-label="Prompts" className="flex flex-col gap-2">
      <h3 className="font-semibold">Prompts</h3>
      <p>{promptSentence(comparison)}</p>
      {settings && (
        <p>
          Settings that differ from step {settings.number} on: {settings.names.join(", ")}.
        </p>
      )}
      {tools && (
        <ul className="list-disc pl-5">
          {tools.only_one.length > 0 && <li>Tools that only this run has: {tools.only_one.join(", ")}</li>}
          {tools.only_other.length > 0 && <li>Tools that only the other run has: {tools.only_other.join(", ")}</li>}
          {tools.changed.length > 0 && <li>Tools that are described differently: {tools.changed.join(", ")}</li>}
        </ul>
      )}
      {message && difference && (
        <div className="grid gap-3 md:grid-cols-2">
          <MessageBox title="This run" message={message.one} part="one" difference={difference} />
          <MessageBox title="Other run" message={message.other} part="other" difference={difference} />
        </div>
      )}
    </section>
  );
}

const textOf = (message: RecordMessage | null) => (message ? messageText(message) : "");

/** Return the settings other than the tools that differ in the first step where there are any. */
function changedSettings(steps: readonly StepPair[]): { number: number; names: string[] } | null {
  for (const { number, changed } of steps) {
    const names = (changed ?? []).filter((name) => name !== "tools").map((name) => name.replaceAll("_", " "));
    if (names.length > 0) return { number, names };
  }
  return null;
}

interface BoxProps {
  title: string;
  message: RecordMessage | null;
  part: "one" | "other";
  difference: TextDifference;
}

/** A message with the text that the message of the other run does not have. */
function MessageBox({ title, message, part, difference }: BoxProps) {
  const shown = excerpt(difference);
  return (
    <section
      aria-label={`Message of ${title.toLowerCase()}`}
      className="min-w-0 rounded-lg border border-line px-3 py-2"
    >
      <h4 className="font-semibold">
        {title}
        {message && <span className="font-normal text-muted">, {message.role}</span>}
      </h4>
      {message ? (
        <>
          <pre className="mt-1 font-mono text-code break-words whitespace-pre-wrap">
            {shown.before}
            {shown[part] !== "" && <mark className="rounded-xs bg-mark text-text">{shown[part]}</mark>}
            {shown.after}
          </pre>
          <details className="mt-2">
            <summary className="cursor-pointer text-small text-muted">The whole message</summary>
            <div className="mt-2 flex flex-col gap-3">
              {message.parts.map((one, index) => (
                <PartView key={index} part={one} wanted="" label={`part ${index + 1} of ${title.toLowerCase()}`} />
              ))}
            </div>
          </details>
        </>
      ) : (
        <p className="mt-1 text-muted">The prompt ends before this message.</p>
      )}
    </section>
  );
}

const PAIR_PX = 64;
const MOST_PAIRS = 5;

function Pairs({ pairs, onStep }: { pairs: StepPair[]; onStep: (step: string) => void }) {
  if (pairs.length === 0) return null;
  return (
    <section aria-label="Pairs of steps">
      <h3 className="mb-1 font-semibold">Steps</h3>
      <div
        className="flex flex-col overflow-hidden rounded-lg border border-line"
        style={{ height: Math.min(pairs.length, MOST_PAIRS) * PAIR_PX + 2 }}
      >
        <RecordList
          label="Steps of both runs"
          items={pairs}
          keyOf={(pair) => String(pair.number)}
          rowPx={PAIR_PX}
          current={null}
          onOpen={(pair) => pair.one && onStep(pair.one.id)}
          render={(pair) => <PairRow pair={pair} />}
        />
      </div>
    </section>
  );
}

function PairRow({ pair }: { pair: StepPair }) {
  const { one, other, changed } = pair;
  return (
    <div className="flex h-full flex-col justify-center gap-0.5">
      <Figures
        className="truncate"
        items={[
          <span key="step" className="font-medium text-text">
            Step {pair.number}
          </span>,
          messagesOf(pair),
          pair.has_same_answer == null ? null : pair.has_same_answer ? "same answer" : "another answer",
          changed && changed.length > 0 && `changed: ${changed.join(", ").replaceAll("_", " ")}`,
          !one && "only in the other run",
          !other && "only in this run",
        ]}
      />
      <Figures
        className="truncate"
        items={[
          beside(one && promptTokens(one.usage), other && promptTokens(other.usage), (value) => `${compact(value)} in`),
          beside(one?.usage?.output_tokens, other?.usage?.output_tokens, (value) => `${compact(value)} out`),
          beside(one?.cost_micros, other?.cost_micros, dollars),
          beside(one?.duration_ms, other?.duration_ms, precise),
        ]}
      />
    </div>
  );
}

function messagesOf({ one, other, same_messages: same }: StepPair): string | null {
  if (same == null || !one || !other) return null;
  const isSame = same === one.message_count && same === other.message_count;
  return isSame
    ? `${same} messages, all the same`
    : `first ${same} of ${one.message_count} / ${other.message_count} messages the same`;
}

/** Return the figure of this run and that of the other one: `41k in / 38k in`. */
function beside(
  one: number | null | undefined,
  other: number | null | undefined,
  shown: (value: number) => string,
): ReactNode {
  if (one == null && other == null) return null;
  return [one, other].map((value) => (value == null ? "–" : shown(value))).join(" / ");
}
