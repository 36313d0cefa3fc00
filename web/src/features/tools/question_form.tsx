import { Hand, MessageCircleQuestion } from "lucide-react";
import { type KeyboardEvent, useEffect, useId, useState } from "react";
import { useStore } from "zustand";
import { fields, list, text } from "@/chat/tool_texts";
import { drafts } from "@/features/composer/draft_store";
import { useConversation } from "@/features/conversation/chat_context";
import type { Answering } from "@/state/drafts";
import { useMe } from "@/state/queries";
import { Button } from "@/ui/button";
import { cx } from "@/ui/cx";
import { Spinner } from "@/ui/spinner";
import type { BodyProps } from "./tool_display";

interface Question {
  header: string;
  question: string;
  options: { label: string; description: string }[];
}

export function questionsOf(value: unknown): Question[] {
  return list(fields(value).questions).map((one) => ({
    header: text(one.header),
    question: text(one.question),
    options: list(one.options).map((option) => ({ label: text(option.label), description: text(option.description) })),
  }));
}

/** Return the answers as a user message: a single answer, or numbered lines. */
export function answerText(questions: Question[], answers: string[]): string {
  if (questions.length === 1) return answers[0] ?? "";
  return questions.map((one, index) => `${index + 1}. ${one.header}: ${answers[index] ?? ""}`).join("\n");
}

interface Props extends BodyProps {
  active: boolean;
  latest: boolean;
}

/** The card of a question of the agent: a form while it can be answered, else the text of the question. */
export function QuestionCard({ call, state, active, latest }: Props) {
  const { session, isOwner, isArchived } = useConversation();
  const { data: me } = useMe();
  const status = useStore(session.store, (one) => one.data.status);
  const questions = questionsOf(call.hasResult && !call.isError ? call.result : call.args);
  const open = latest && isOwner && !isArchived && status === "waiting" && state === "done";
  return (
    <section
      aria-label="Question of the agent"
      className={cx("rounded-lg border bg-bg1 p-4", open ? "border-warn" : "border-line")}
    >
      <p className="mb-2 flex items-center gap-2 font-medium">
        {open ? (
          <Hand aria-hidden className="size-4 text-warn" />
        ) : (
          <MessageCircleQuestion aria-hidden className="size-4 text-muted" />
        )}
        {open ? "The agent asks you" : "Asked you"}
        {!call.hasResult && active && <Spinner />}
        {state === "failed" && <span className="text-small text-danger">could not be asked</span>}
      </p>
      {open && me ? <Form questions={questions} callId={call.id} userId={me.id} /> : <Asked questions={questions} />}
    </section>
  );
}

function Asked({ questions }: { questions: Question[] }) {
  return (
    <ul className="space-y-2">
      {questions.map((one, index) => (
        <li key={index}>
          <p>{one.question}</p>
          <p className="text-small text-muted">{one.options.map((option) => option.label).join(" · ")}</p>
        </li>
      ))}
    </ul>
  );
}

const UNANSWERED: Answering = { at: 0, chosen: {}, other: {} };

interface FormProps {
  questions: Question[];
  callId: string;
  userId: string;
}

function Form({ questions, callId, userId }: FormProps) {
  const { chatId, sendText } = useConversation();
  const name = useId();
  // The answers so far are saved with the draft.
  const [answering, setAnswering] = useState(() => drafts.load(userId, chatId).answers[callId] ?? UNANSWERED);
  const { at, chosen, other } = answering;
  const setAt = (next: number) => setAnswering((now) => ({ ...now, at: next }));
  const setChosen = (next: Answering["chosen"]) => setAnswering((now) => ({ ...now, chosen: next }));
  const setOther = (next: Answering["other"]) => setAnswering((now) => ({ ...now, other: next }));
  const [sending, setSending] = useState(false);
  useEffect(() => {
    if (answering !== UNANSWERED) drafts.saveAnswers(userId, chatId, callId, answering);
  }, [answering, userId, chatId, callId]);
  const question = questions[at];
  if (!question) return null;
  const answer = (index: number): string => {
    const pick = chosen[index];
    if (pick === "other") return (other[index] ?? "").trim();
    return pick === undefined ? "" : (questions[index]?.options[pick]?.label ?? "");
  };
  const isLast = at === questions.length - 1;
  const next = () => {
    if (!answer(at)) return;
    if (!isLast) {
      setAt(at + 1);
      return;
    }
    setSending(true);
    void sendText(
      answerText(
        questions,
        questions.map((_, index) => answer(index)),
      ),
    )
      .then(() => drafts.saveAnswers(userId, chatId, callId, null))
      .finally(() => setSending(false));
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const typing = event.target instanceof HTMLInputElement && event.target.type === "text";
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const digit = Number(event.key);
    if (digit >= 1 && digit <= question.options.length) setChosen({ ...chosen, [at]: digit - 1 });
    else if (digit === question.options.length + 1) setChosen({ ...chosen, [at]: "other" });
  };
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        next();
      }}
    >
      <fieldset onKeyDown={onKeyDown} disabled={sending}>
        <legend className="mb-2">
          {questions.length > 1 && (
            <span className="mr-2 text-small text-muted">
              {at + 1} of {questions.length}
            </span>
          )}
          {question.question}
        </legend>
        <div className="space-y-1.5">
          {question.options.map((option, index) => (
            <label
              key={index}
              className={cx(
                "flex cursor-pointer items-start gap-2.5 rounded-lg border px-3 py-2 hover:bg-bg2",
                chosen[at] === index ? "border-accent" : "border-line",
              )}
            >
              <input
                type="radio"
                name={`${name}-${at}`}
                className="mt-1 accent-(--accent-color)"
                checked={chosen[at] === index}
                onChange={() => setChosen({ ...chosen, [at]: index })}
              />
              <span className="min-w-0">
                <span className="block font-medium">{option.label}</span>
                <span className="block text-small text-muted">{option.description}</span>
              </span>
              <kbd className="ml-auto font-sans text-small text-muted">{index + 1}</kbd>
            </label>
          ))}
          <label
            className={cx(
              "shows-focus flex items-center gap-2.5 rounded-lg border px-3 py-2",
              chosen[at] === "other" ? "border-accent" : "border-line",
            )}
          >
            <input
              type="radio"
              name={`${name}-${at}`}
              className="accent-(--accent-color)"
              aria-label="Other"
              checked={chosen[at] === "other"}
              onChange={() => setChosen({ ...chosen, [at]: "other" })}
            />
            <input
              type="text"
              aria-label="Another answer"
              placeholder="Other"
              value={other[at] ?? ""}
              // Not on focus, because keyboard users pass this field on the way to the button.
              onClick={() => setChosen({ ...chosen, [at]: "other" })}
              onChange={(event) => {
                setChosen({ ...chosen, [at]: "other" });
                setOther({ ...other, [at]: event.target.value });
              }}
              className="min-w-0 flex-1 bg-transparent outline-none placeholder:text-muted"
            />
          </label>
        </div>
      </fieldset>
      <div className="mt-3 flex justify-end gap-2">
        {at > 0 && <Button onClick={() => setAt(at - 1)}>Back</Button>}
        <Button type="submit" kind="primary" disabled={!answer(at) || sending}>
          {isLast ? (questions.length > 1 ? "Send answers" : "Send answer") : "Next"}
        </Button>
      </div>
    </form>
  );
}
