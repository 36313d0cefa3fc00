import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { type Answer, type Replay, type ReplayBody, replayStep, type Step } from "@/api/debug";
import { sentence } from "@/api/errors";
import type { Effort } from "@/api/types.gen";
import { cutLength, messageText, partText, precise } from "@/chat/debug_texts";
import { CopyButton } from "@/features/timeline/code_block";
import { useKnownModels } from "@/state/queries";
import { Button } from "@/ui/button";
import { cx } from "@/ui/cx";
import { Dialog } from "@/ui/dialog";
import { TextArea } from "@/ui/field";
import { dollars } from "@/ui/money";
import { Notice } from "@/ui/notice";
import { Select } from "@/ui/select";
import { Spinner } from "@/ui/spinner";
import { Fact, tokenWords } from "./record_labels";
import { PartView } from "./recorded_parts";

// The effort that the provider chooses by itself.
const DEFAULT = "default";

interface Props {
  chat: string;
  run: string;
  step: Step;
  /** The model of the run, and its name for users without that model. */
  modelConfigId: string | null;
  model: string;
  onClose: () => void;
}

/** Sends a recorded prompt again, unchanged or with another model, effort or message, and compares the answers. */
export function ReplayDialog({ chat, run, step, modelConfigId, model, onClose }: Props) {
  const models = useKnownModels();
  const [chosen, setChosen] = useState("");
  const [effort, setEffort] = useState("");
  const [edits, setEdits] = useState<ReadonlyMap<number, string>>(new Map());
  const replay = useMutation({
    mutationFn: () => replayStep(chat, run, step.id, replayBody(chosen, effort, edits)),
  });
  const current = models.find((one) => one.id === (chosen || modelConfigId));
  const efforts = current?.reasoning_efforts ?? [];
  const others = models.filter((one) => one.provider.available && one.id !== modelConfigId);
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title={`Replay step ${step.number}`}
      description="The recorded prompt goes to the provider again and costs tokens. Tools do not run, and the chat does not change."
      wide
      footer={
        <>
          <Button onClick={onClose}>Close</Button>
          <Button kind="primary" disabled={replay.isPending} onClick={() => replay.mutate()}>
            {replay.isPending ? "Waiting for the answer" : replay.data ? "Replay again" : "Replay"}
          </Button>
        </>
      }
    >
      <div className="flex flex-col gap-4">
        <div className="grid gap-3 sm:grid-cols-2">
          <Select
            label="Model"
            value={chosen}
            onChange={(id) => {
              setChosen(id);
              setEffort("");
            }}
            options={[
              { value: "", label: `As recorded (${model})` },
              ...others.map((one) => ({ value: one.id, label: `${one.display_name}, ${one.provider.display_name}` })),
            ]}
          />
          <Select
            label="Effort"
            value={effort}
            onChange={setEffort}
            disabled={efforts.length === 0}
            options={[
              { value: "", label: `As recorded (${step.request.effort ?? DEFAULT})` },
              { value: DEFAULT, label: DEFAULT },
              ...efforts.map((one) => ({ value: one, label: one })),
            ]}
          />
        </div>
        <Edits step={step} edits={edits} onEdits={setEdits} />
        {replay.error && <Notice kind="error">{sentence(replay.error)}</Notice>}
        {replay.isPending && (
          <p role="status" className="flex items-center gap-2 text-muted">
            <Spinner /> The model answers. This takes as long as the step did.
          </p>
        )}
        {replay.data && !replay.isPending && <ReplayView replay={replay.data} />}
      </div>
    </Dialog>
  );
}

/** Return the request for a replay; only differences are sent. */
export function replayBody(model: string, effort: string, edits: ReadonlyMap<number, string>): ReplayBody {
  return {
    ...(model ? { model_config_id: model } : {}),
    ...(effort ? { effort: effort === DEFAULT ? null : (effort as Effort) } : {}),
    ...(edits.size > 0 ? { edits: [...edits].map(([message, text]) => ({ message, text })) } : {}),
  };
}

interface EditsProps {
  step: Step;
  edits: ReadonlyMap<number, string>;
  onEdits: (edits: ReadonlyMap<number, string>) => void;
}

/** The messages of the prompt that are changed for the replay. */
function Edits({ step, edits, onEdits }: EditsProps) {
  const { messages } = step.request;
  // Only messages with text can be edited.
  const editable = messages.flatMap((message, index) =>
    message.parts.some((part) => part.type === "text") ? [index] : [],
  );
  const textOf = (index: number) =>
    (messages[index]?.parts ?? []).flatMap((part) => (part.type === "text" ? [part.text ?? ""] : [])).join("\n\n");
  const set = (index: number, text: string | null) => {
    const next = new Map(edits);
    if (text === null) next.delete(index);
    else next.set(index, text);
    onEdits(next);
  };
  return (
    <div className="flex flex-col gap-3">
      {[...edits].map(([index, text]) => (
        <div key={index}>
          <TextArea
            label={`Message ${index + 1}, ${messages[index]?.role ?? ""}`}
            rows={6}
            value={text}
            onChange={(event) => set(index, event.target.value)}
            hint={
              messages[index]?.parts.some((part) => cutLength(part) !== null)
                ? "The record has only the beginning of this message. Your text replaces all of it."
                : "Your text replaces the text of this message in the replay."
            }
          />
          <Button size="small" className="mt-1" onClick={() => set(index, null)}>
            Undo the change
          </Button>
        </div>
      ))}
      {editable.some((index) => !edits.has(index)) && (
        <Select
          label="Change a message (optional)"
          value=""
          onChange={(value) => value !== "" && set(Number(value), textOf(Number(value)))}
          options={[
            { value: "", label: "Choose a message" },
            ...editable
              .filter((index) => !edits.has(index))
              .map((index) => {
                const message = messages[index];
                const head = message ? messageText(message).replace(/\s+/g, " ").slice(0, 60) : "";
                return { value: String(index), label: `${index + 1}, ${message?.role ?? ""}: ${head}` };
              }),
          ]}
        />
      )}
    </div>
  );
}

/** The recorded and the new answer, side by side. */
export function ReplayView({ replay }: { replay: Replay }) {
  return (
    <div className="flex flex-col gap-3">
      {(replay.warnings ?? []).map((warning) => (
        <Notice key={warning} kind="warn">
          {warning}
        </Notice>
      ))}
      <div className="grid gap-3 md:grid-cols-2">
        <AnswerView title="Recorded" answer={replay.recorded} />
        <AnswerView title="Replay" answer={replay.replayed} isNew />
      </div>
    </div>
  );
}

function AnswerView({ title, answer, isNew = false }: { title: string; answer: Answer; isNew?: boolean }) {
  const { content = [], cost_micros, ttft_ms, duration_ms } = answer;
  return (
    <section
      aria-label={title}
      className={cx("min-w-0 rounded-lg border px-3 py-2", isNew ? "border-accent" : "border-line")}
    >
      <h3 className="flex min-h-7 items-center gap-2 font-semibold">
        <span className="flex-1">{title}</span>
        {content.length > 0 && (
          <CopyButton text={() => content.map(partText).join("\n\n")} label={`Copy ${title.toLowerCase()}`} />
        )}
      </h3>
      <dl className="mt-1 grid grid-cols-[auto_1fr] gap-x-4 gap-y-0.5 text-small tabular-nums">
        <Fact name="Model">{[answer.model ?? "unknown", answer.effort].filter(Boolean).join(", ")}</Fact>
        <Fact name="Tokens">{tokenWords(answer.usage ?? null) ?? "not reported"}</Fact>
        <Fact name="Cost">{cost_micros == null ? "not known" : dollars(cost_micros)}</Fact>
        <Fact name="First token">{ttft_ms == null ? "not known" : precise(ttft_ms)}</Fact>
        <Fact name="Time">{duration_ms == null ? "not known" : precise(duration_ms)}</Fact>
        <Fact name="Ended by">{answer.finish_reason?.replaceAll("_", " ") ?? "not known"}</Fact>
      </dl>
      <div className="mt-3 flex flex-col gap-3 border-t border-line pt-3">
        {answer.error && <Notice kind="error">{answer.error.message}</Notice>}
        {content.length === 0 && !answer.error && <p className="text-muted">The answer is empty.</p>}
        {content.map((part, index) => (
          <PartView key={index} part={part} wanted="" label={`part ${index + 1} of ${title.toLowerCase()}`} />
        ))}
      </div>
    </section>
  );
}
