import { Plus, Trash2 } from "lucide-react";
import { useId } from "react";
import type { RuleAction } from "@/api/types.gen";
import { Button, IconButton } from "@/ui/button";
import { TextField } from "@/ui/field";
import { Select } from "@/ui/select";

/** A rule in the editor. Conditions that the editor does not show are kept. */
export interface DraftRule {
  key: string;
  tool: string;
  action: RuleAction;
  argument: string;
  pattern: string;
  reason: string;
  rest: Record<string, string>;
  problem?: string | undefined;
}

interface StoredRule {
  tool: string;
  action: RuleAction;
  match?: Record<string, string>;
  reason?: string;
  problem?: string | null;
}

const ACTIONS: { value: RuleAction; label: string }[] = [
  { value: "deny", label: "Deny" },
  { value: "ask", label: "Ask" },
  { value: "allow", label: "Allow" },
  { value: "always", label: "Allow, do not ask" },
];

export function readRules(stored: readonly StoredRule[]): DraftRule[] {
  return stored.map((rule, index) => {
    const [first, ...others] = Object.entries(rule.match ?? {});
    return {
      key: `stored-${index}`,
      tool: rule.tool,
      action: rule.action,
      argument: first?.[0] ?? "",
      pattern: first?.[1] ?? "",
      reason: rule.reason ?? "",
      rest: Object.fromEntries(others),
      ...(rule.problem ? { problem: rule.problem } : {}),
    };
  });
}

export function writeRules(rules: readonly DraftRule[]): StoredRule[] {
  return rules.map(({ tool, action, argument, pattern, reason, rest }) => ({
    tool: tool.trim(),
    action,
    match: { ...(argument.trim() ? { [argument.trim()]: pattern } : {}), ...rest },
    reason,
  }));
}

interface Props {
  rules: DraftRule[];
  onChange: (rules: DraftRule[]) => void;
  error: (name: string) => string | undefined;
  /** The name of the list in the API. */
  field?: string;
}

/** The editor for approval rules. The strongest matching rule decides. */
export function RulesEditor({ rules, onChange, error, field = "rules" }: Props) {
  const id = useId();
  const change = (at: number, part: Partial<DraftRule>) =>
    onChange(rules.map((rule, index) => (index === at ? { ...rule, ...part } : rule)));
  return (
    <div className="flex flex-col gap-3">
      {rules.length === 0 && (
        <p className="rounded-lg border border-dashed border-line p-4 text-center text-muted">No rules.</p>
      )}
      {rules.map((rule, index) => (
        <fieldset key={rule.key} className="rounded-lg border border-line p-3">
          <legend className="px-1 text-small text-muted">Rule {index + 1}</legend>
          {rule.problem && (
            <p role="alert" className="mb-3 break-words text-danger">
              This rule is not valid, so it{" "}
              {rule.action === "deny" || rule.action === "ask"
                ? "applies to every call of its tool"
                : "permits nothing"}
              . {rule.problem}
            </p>
          )}
          <div className="grid gap-3 sm:grid-cols-2">
            <Select
              label="Then"
              value={rule.action}
              onChange={(action) => change(index, { action: action as RuleAction })}
              options={ACTIONS}
            />
            <TextField
              label="Tool"
              placeholder="execute"
              value={rule.tool}
              onChange={(e) => change(index, { tool: e.target.value })}
              error={error(`${field}[${index}].tool`)}
            />
            <TextField
              label="Argument"
              placeholder="Any"
              value={rule.argument}
              onChange={(e) => change(index, { argument: e.target.value })}
            />
            <TextField
              label="Matches"
              placeholder="git push*"
              value={rule.pattern}
              disabled={!rule.argument}
              onChange={(e) => change(index, { pattern: e.target.value })}
              error={error(`${field}[${index}].match.${rule.argument.trim()}`)}
            />
            {rule.action === "deny" && (
              <TextField
                label="Reason, shown to the agent"
                className="sm:col-span-2"
                value={rule.reason}
                onChange={(e) => change(index, { reason: e.target.value })}
              />
            )}
          </div>
          <div className="mt-2 flex justify-end">
            <IconButton
              label={`Remove rule ${index + 1}`}
              onClick={() => onChange(rules.filter((_, other) => other !== index))}
            >
              <Trash2 />
            </IconButton>
          </div>
        </fieldset>
      ))}
      <Button
        className="self-start"
        onClick={() =>
          onChange([
            ...rules,
            { key: `${id}-${Date.now()}`, tool: "", action: "ask", argument: "", pattern: "", reason: "", rest: {} },
          ])
        }
      >
        <Plus className="size-4" aria-hidden /> Add rule
      </Button>
    </div>
  );
}
