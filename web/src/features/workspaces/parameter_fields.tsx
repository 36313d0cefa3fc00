/** The fields of a template's parameters, for every form that creates or starts a workspace. */
import type { ApiError } from "@/api/errors";
import type { ParameterView } from "@/api/types.gen";
import type { WorkspaceRow } from "@/api/workspaces";
import { type Entries, type Entry, recentEntries } from "@/chat/template_parameters";
import { Commands } from "@/ui/backtick_code";
import { FieldNote, TextArea, TextField } from "@/ui/field";
import { Select } from "@/ui/select";
import { Switch } from "@/ui/switch";

interface Props {
  template: string;
  parameters: readonly ParameterView[];
  entries: Entries;
  onChange: (name: string, entry: Entry) => void;
  /** The refused request, whose messages are shown below their fields. */
  refused: ApiError | null;
  /** The user's workspaces, whose values are offered. */
  workspaces?: readonly WorkspaceRow[];
}

export function ParameterFields({ template, parameters, entries, onChange, refused, workspaces = [] }: Props) {
  return parameters.map((one) => (
    <div key={one.name}>
      <ParameterField
        parameter={one}
        entry={entries[one.name] ?? ""}
        onChange={(entry) => onChange(one.name, entry)}
        error={refused?.field(`parameters.${one.name}`)}
      />
      <Recent
        entries={recentEntries(workspaces, template, one)}
        label={labelOf(one)}
        onPick={(entry) => onChange(one.name, entry)}
      />
    </div>
  ));
}

const labelOf = (one: ParameterView) => one.display_name || one.name;

interface FieldProps {
  parameter: ParameterView;
  entry: Entry;
  onChange: (entry: Entry) => void;
  error: string | undefined;
}

function ParameterField({ parameter: one, entry, onChange, error }: FieldProps) {
  const label = one.required ? labelOf(one) : `${labelOf(one)} (optional)`;
  const common = { label, hint: <Help parameter={one} />, error };
  if (one.type === "bool")
    return (
      <>
        <Switch label={labelOf(one)} hint={common.hint} checked={entry === true} onChange={onChange} />
        <FieldNote id={`${one.name}-error`} error={error} />
      </>
    );
  const value = String(entry);
  if (one.options.length > 0 && one.type !== "list(string)")
    return (
      <Select
        label={label}
        value={value}
        onChange={onChange}
        options={one.options.map((each) => ({ value: String(each), label: String(each) }))}
        placeholder="Choose"
        hint={one.description}
        error={error}
      />
    );
  if (one.type === "list(string)")
    return (
      <TextArea
        {...common}
        rows={3}
        spellCheck={false}
        placeholder="One per line"
        value={value}
        onChange={(event) => onChange(event.target.value)}
      />
    );
  return (
    <TextField
      {...common}
      required={one.required && one.default === null}
      type={one.type === "secret" ? "password" : "text"}
      autoComplete={one.type === "secret" ? "new-password" : "off"}
      autoCapitalize="none"
      spellCheck={false}
      {...(one.type === "number" ? { inputMode: "decimal" as const } : {})}
      value={value}
      onChange={(event) => onChange(event.target.value)}
    />
  );
}

/** The description of a parameter and its limits, or its pattern if there is no description. */
function Help({ parameter: one }: { parameter: ParameterView }) {
  const limits = [
    one.type === "secret" ? "Stored encrypted; never shown again." : "",
    one.type === "number" && one.min ? `At least ${one.min}.` : "",
    one.type === "number" && one.max !== null ? `At most ${one.max}.` : "",
  ].filter(Boolean);
  return (
    <>
      <Commands text={[one.description, ...limits].filter(Boolean).join(" ")} />
      {one.regex && !one.description && (
        <>
          {" "}
          Must match <code className="font-mono break-words">{one.regex}</code>.
        </>
      )}
    </>
  );
}

function Recent({
  entries,
  label,
  onPick,
}: {
  entries: readonly string[];
  label: string;
  onPick: (entry: string) => void;
}) {
  if (entries.length === 0) return null;
  return (
    <ul aria-label={`Recent values of ${label}`} className="mt-1.5 flex flex-wrap gap-1.5">
      {entries.map((one) => (
        <li key={one} className="min-w-0">
          <button
            type="button"
            onClick={() => onPick(one)}
            className="max-w-full truncate rounded-full border border-line px-2.5 py-0.5 text-small text-muted hover:bg-bg2 pointer-coarse:min-h-11"
          >
            {one.replaceAll("\n", ", ")}
          </button>
        </li>
      ))}
    </ul>
  );
}
