/** The questions that MCP servers ask the user during tool calls: forms, and addresses to open. */
import { ExternalLink, MessageCircleQuestion } from "lucide-react";
import { type FormEvent, type ReactNode, useState } from "react";
import { ApiError, sentence } from "@/api/errors";
import { post } from "@/api/http";
import type { Action, FormField, ServerQuestion } from "@/api/types.gen";
import {
  type Entries,
  type Entry,
  initialEntries,
  isAnswerable,
  isKnown,
  problemOf,
  siteOf,
  valuesOf,
} from "@/chat/elicitation";
import { fields } from "@/chat/tool_texts";
import { drafts } from "@/features/composer/draft_store";
import { useConversation } from "@/features/conversation/chat_context";
import { Asked, type AskedCall } from "@/features/tools/asked_call";
import { useMe } from "@/state/queries";
import { Button } from "@/ui/button";
import { cx } from "@/ui/cx";
import { FieldNote, TextArea, TextField } from "@/ui/field";
import { Notice } from "@/ui/notice";
import { Select } from "@/ui/select";
import { Switch } from "@/ui/switch";

interface Props {
  action: Action;
  askedBy: string | undefined;
  origin: ReactNode;
  onAnswer: (() => void) | undefined;
  onAnswered: (() => void) | undefined;
}

type Decision = "approve" | "deny";

/** The entries of all forms: by call, by question, by field. */
type Forms = Record<string, Record<string, Entries>>;

const questionsOf = (call: AskedCall): ServerQuestion[] => call.elicitation?.questions ?? [];
const mayApprove = (call: AskedCall) =>
  !call.elicitation || (questionsOf(call).length > 0 && questionsOf(call).every(isAnswerable));

const hasFields = (call: AskedCall) => questionsOf(call).some((one) => !one.url && (one.fields ?? []).length > 0);

/** Return the entries of all forms: those of the draft, else the defaults. */
function formsOf(calls: readonly AskedCall[], draft: unknown): Forms {
  const kept = fields(draft);
  const entriesOf = (call: AskedCall, question: ServerQuestion): Entries => {
    const entered = fields(fields(kept[call.tool_call_id])[question.id]) as Entries;
    return { ...initialEntries(question), ...entered };
  };
  return Object.fromEntries(
    calls.map((call) => [
      call.tool_call_id,
      Object.fromEntries(questionsOf(call).map((one) => [one.id, entriesOf(call, one)])),
    ]),
  );
}

/** Return the name of the button that answers a call. */
function actionOf(call: AskedCall): string {
  if (hasFields(call)) return "Send answer";
  return questionsOf(call).some((one) => one.url) ? "Continue" : "Confirm";
}

function noteOf(call: AskedCall, server: string): string {
  return hasFields(call) ? `Your answer is sent to ${server}. Never enter a password here.` : "";
}

/** All calls are answered in one request. Calls without a question are approved or denied as usual. */
export function ServerQuestions({ action, askedBy, origin, onAnswer, onAnswered }: Props) {
  const { chatId, isOwner } = useConversation();
  const calls = action.tool_calls;
  const only = calls.length === 1 ? calls[0] : undefined;
  const userId = useMe().data?.id;
  const askedChat = askedBy ?? chatId;
  // A half-filled form survives a reload, and is forgotten with the questions.
  const asked = JSON.stringify(calls.map((call) => [call.tool_call_id, call.elicitation ?? null]));
  const [forms, setForms] = useState<Forms>(() =>
    formsOf(calls, userId ? drafts.loadForm(userId, askedChat, asked) : null),
  );
  const change = (next: Forms) => {
    setForms(next);
    if (userId && isOwner) drafts.saveForm(userId, askedChat, asked, next);
  };
  const [chosen, setChosen] = useState<Record<string, Decision>>({});
  const [isChecked, setChecked] = useState(false);
  const [busy, setBusy] = useState(false);
  const [refusal, setRefusal] = useState<unknown>(null);
  const asks = calls.find((call) => call.elicitation)?.elicitation?.server ?? "";
  const decided = calls.filter((call) => chosen[call.tool_call_id]).length;

  const entriesOf = (call: AskedCall, question: ServerQuestion): Entries =>
    forms[call.tool_call_id]?.[question.id] ?? {};
  const hasProblem = (call: AskedCall) =>
    questionsOf(call).some((question) =>
      (question.fields ?? []).some((field) => problemOf(field, entriesOf(call, question)[field.name])),
    );
  const responsesOf = (call: AskedCall) =>
    Object.fromEntries(
      questionsOf(call)
        .filter((question) => !question.url)
        .map((question) => [question.id, valuesOf(question, entriesOf(call, question))]),
    );

  const send = (decisionOf: (call: AskedCall) => Decision) => {
    setChecked(true);
    if (calls.some((call) => decisionOf(call) === "approve" && hasProblem(call))) return;
    setBusy(true);
    setRefusal(null);
    onAnswer?.();
    const answers = calls.map((call) => {
      const decision = decisionOf(call);
      return {
        tool_call_id: call.tool_call_id,
        decision,
        ...(decision === "approve" && call.elicitation ? { responses: responsesOf(call) } : {}),
      };
    });
    post(`/chats/${askedChat}/approvals`, { answers })
      .then(() => {
        if (userId) drafts.saveForm(userId, askedChat, asked, null);
      })
      .catch(setRefusal)
      .finally(() => {
        setBusy(false);
        onAnswered?.();
      });
  };
  const onSubmit = (event: FormEvent) => {
    event.preventDefault();
    if (only) send(() => "approve");
    else if (decided === calls.length) send((call) => chosen[call.tool_call_id] ?? "deny");
  };
  const refused = refusal instanceof ApiError ? refusal : null;
  const isFieldError = calls.some((call) =>
    questionsOf(call).some((question) => (question.fields ?? []).some((field) => refused?.field(field.name))),
  );
  return (
    <section
      aria-label={`Question of ${asks}`}
      className="rounded-lg border border-warn bg-bg1 p-4"
      data-testid="server-question"
    >
      <form noValidate onSubmit={onSubmit} className="space-y-3">
        <div>
          <p className="flex flex-wrap items-center gap-x-2 font-medium">
            <MessageCircleQuestion aria-hidden className="size-4 shrink-0 text-warn" />
            <span className="min-w-0 break-words">{asks} asks you</span>
            <span className="text-small font-normal text-muted">Waiting for you</span>
          </p>
          {origin && <p className="pl-6 text-small break-words text-muted">{origin}</p>}
        </div>
        {calls.map((call) => (
          <div
            key={call.tool_call_id}
            data-testid="asked-call"
            className={cx("space-y-3", !only && "rounded-lg border border-line p-3")}
          >
            {!call.elicitation && <Asked call={call} />}
            {!only && call.elicitation && <p className="text-small text-muted">{call.elicitation.server}</p>}
            {questionsOf(call).map((question) => (
              <Question
                key={question.id}
                question={question}
                entries={entriesOf(call, question)}
                onChange={(name, entry) =>
                  change({
                    ...forms,
                    [call.tool_call_id]: {
                      ...forms[call.tool_call_id],
                      [question.id]: { ...entriesOf(call, question), [name]: entry },
                    },
                  })
                }
                canAnswer={isOwner && !busy && chosen[call.tool_call_id] !== "deny"}
                isChecked={isChecked}
                refused={refused}
              />
            ))}
            {!mayApprove(call) && (
              <Notice kind="warn">This question cannot be shown here. Decline it to let the agent go on.</Notice>
            )}
            {isOwner && !only && (
              <Choice
                call={call}
                chosen={chosen[call.tool_call_id]}
                busy={busy}
                onChoose={(decision) => setChosen((known) => ({ ...known, [call.tool_call_id]: decision }))}
              />
            )}
          </div>
        ))}
        {refusal !== null && !isFieldError && <Notice kind="error">{sentence(refusal)}</Notice>}
        {isOwner && (
          <div className="flex flex-wrap items-center justify-end gap-2">
            <span className="min-w-0 flex-1 text-small text-muted max-sm:basis-full">
              {only ? noteOf(only, asks) : `${decided} of ${calls.length} decided`}
            </span>
            {only && (
              <Button onClick={() => send(() => "deny")} disabled={busy}>
                Decline
              </Button>
            )}
            {(!only || mayApprove(only)) && (
              <Button type="submit" kind="primary" disabled={busy || (!only && decided < calls.length)}>
                {only ? actionOf(only) : "Send answers"}
              </Button>
            )}
          </div>
        )}
      </form>
    </section>
  );
}

interface ChoiceProps {
  call: AskedCall;
  chosen: Decision | undefined;
  busy: boolean;
  onChoose: (decision: Decision) => void;
}

/** The decision on one of several calls. */
function Choice({ call, chosen, busy, onChoose }: ChoiceProps) {
  const [yes, no] = call.elicitation ? [hasFields(call) ? "Answer" : "Confirm", "Decline"] : ["Approve", "Deny"];
  return (
    <div className="flex flex-wrap gap-2">
      <Button
        size="small"
        aria-pressed={chosen === "approve"}
        className={cx(chosen === "approve" && "bg-bg3 text-ok!")}
        disabled={busy || !mayApprove(call)}
        onClick={() => onChoose("approve")}
      >
        {yes}
      </Button>
      <Button
        size="small"
        aria-pressed={chosen === "deny"}
        className={cx(chosen === "deny" && "bg-bg3 text-danger!")}
        disabled={busy}
        onClick={() => onChoose("deny")}
      >
        {no}
      </Button>
    </div>
  );
}

interface QuestionProps {
  question: ServerQuestion;
  entries: Entries;
  onChange: (name: string, entry: Entry) => void;
  canAnswer: boolean;
  isChecked: boolean;
  refused: ApiError | null;
}

function Question({ question, entries, onChange, canAnswer, isChecked, refused }: QuestionProps) {
  const { message, url, fields = [] } = question;
  return (
    <>
      {message && <p className="break-words whitespace-pre-wrap">{message}</p>}
      {url && <Address url={url} canOpen={canAnswer} />}
      {!url && fields.length > 0 && (
        <fieldset disabled={!canAnswer} className="space-y-3">
          {fields.filter(isKnown).map((field) => {
            const entry = entries[field.name];
            const problem = isChecked ? problemOf(field, entry) : undefined;
            return (
              <Field
                key={field.name}
                field={field}
                entry={entry}
                onChange={(next) => onChange(field.name, next)}
                error={problem ?? refused?.field(field.name)}
              />
            );
          })}
        </fieldset>
      )}
    </>
  );
}

/** An address of another site. Its host stands alone, because the rest of an address can pretend to be another. */
function Address({ url, canOpen }: { url: string; canOpen: boolean }) {
  const site = siteOf(url);
  if (!site) return null;
  return (
    <div className="rounded-lg border border-line p-3">
      <p className="break-words">
        Open this page of <strong>{site}</strong>, finish what it asks for, and then continue here.
      </p>
      <p className="mt-1 font-mono text-small break-all text-muted">{url}</p>
      {canOpen && (
        <a
          href={url}
          target="_blank"
          rel="noopener noreferrer"
          className="mt-2 inline-flex min-h-8 items-center gap-1.5 text-accent underline pointer-coarse:min-h-11"
        >
          <ExternalLink aria-hidden className="size-4" /> Open {site}
        </a>
      )}
    </div>
  );
}

interface FieldProps {
  field: FormField;
  entry: Entry;
  onChange: (entry: Entry) => void;
  error: string | undefined;
}

const LONG_TEXT = 300;
const INPUTS: Record<string, string> = { email: "email", uri: "url", date: "date", "date-time": "datetime-local" };

function Field({ field, entry, onChange, error }: FieldProps) {
  const name = field.title || field.name;
  const label = field.required || field.kind === "boolean" ? name : `${name} (optional)`;
  const { description: hint = "", options = [] } = field;
  if (field.kind === "boolean")
    return (
      <>
        <Switch label={label} hint={hint} checked={entry === true} onChange={onChange} />
        <FieldNote id={`${field.name}-error`} error={error} />
      </>
    );
  if (field.kind === "choices")
    return <Several {...{ label, hint, field, error, onChange }} picked={Array.isArray(entry) ? entry : []} />;
  const value = String(entry ?? "");
  if (field.kind === "choice")
    return (
      <Select
        label={label}
        value={value}
        onChange={onChange}
        options={[
          ...(field.required ? [] : [{ value: "", label: "No answer" }]),
          ...options.map((one) => ({ value: one.value, label: one.title || one.value })),
        ]}
        {...(field.required ? { placeholder: "Choose" } : {})}
        hint={hint}
        error={error}
      />
    );
  const common = { label, hint, error, value, required: field.required ?? false };
  if (field.kind === "text" && !field.format && (field.maximum ?? 0) > LONG_TEXT)
    return <TextArea {...common} rows={4} onChange={(event) => onChange(event.target.value)} />;
  return (
    <TextField
      {...common}
      type={(field.kind === "text" && INPUTS[field.format ?? ""]) || "text"}
      autoComplete="off"
      {...(field.kind === "text" ? {} : { inputMode: "decimal" as const })}
      onChange={(event) => onChange(event.target.value)}
    />
  );
}

interface SeveralProps {
  label: string;
  hint: string;
  field: FormField;
  picked: string[];
  onChange: (picked: string[]) => void;
  error: string | undefined;
}

function Several({ label, hint, field, picked, onChange, error }: SeveralProps) {
  return (
    <fieldset>
      <legend className="mb-1 font-medium">{label}</legend>
      <div className="space-y-1">
        {(field.options ?? []).map((option) => (
          <label key={option.value} className="flex items-center gap-2.5 pointer-coarse:min-h-11">
            <input
              type="checkbox"
              className="accent-(--accent-color)"
              checked={picked.includes(option.value)}
              onChange={(event) =>
                onChange(
                  event.target.checked ? [...picked, option.value] : picked.filter((one) => one !== option.value),
                )
              }
            />
            <span className="min-w-0 break-words">{option.title || option.value}</span>
          </label>
        ))}
      </div>
      <FieldNote id={`${field.name}-note`} hint={hint} error={error} />
    </fieldset>
  );
}
