import { ChevronDown } from "lucide-react";
import { memo, useMemo } from "react";
import { Link } from "react-router";
import type { Effort } from "@/api/types.gen";
import { useSelf } from "@/state/login_session";
import { type KnownModel, useKnownModels } from "@/state/queries";
import { Button } from "@/ui/button";
import { Combobox, type Option } from "@/ui/combobox";
import { cx } from "@/ui/cx";
import { Popover } from "@/ui/popover";

export interface ModelChoice {
  modelConfigId: string | null;
  effort: Effort | null;
}

interface Props {
  choice: ModelChoice;
  onChoose: (choice: ModelChoice) => void;
  open: boolean;
  onOpenChange: (open: boolean) => void;
  disabled?: boolean;
}

export function effortKey(modelId: string): string {
  return `rookery.effort:${modelId}`;
}

function context(limit: number): string {
  return limit >= 1_000_000 ? `${limit / 1_000_000}M` : `${Math.round(limit / 1000)}k`;
}

/** The picker for the model and the reasoning effort of the next message. */
export const ModelPicker = memo(function ModelPicker({ choice, onChoose, open, onOpenChange, disabled }: Props) {
  const models = useKnownModels();
  const isAdmin = useSelf().role === "admin";
  const current = models.find((one) => one.id === choice.modelConfigId) ?? null;
  const options = useMemo(
    () => models.map((model) => optionOf(model, choice.modelConfigId)),
    [models, choice.modelConfigId],
  );
  const efforts = current?.reasoning_efforts ?? [];
  const choose = (id: string) => {
    const model = models.find((one) => one.id === id);
    const kept = read(effortKey(id)) as Effort | null;
    const effort = kept && model?.reasoning_efforts.includes(kept) ? kept : null;
    write("rookery.model", id);
    onChoose({ modelConfigId: id, effort });
  };
  return (
    <Popover
      label="Model"
      open={open}
      onOpenChange={onOpenChange}
      side="top"
      className="flex w-80 max-w-[calc(100vw-2rem)] flex-col p-0"
      trigger={
        <Button
          size="small"
          kind="ghost"
          disabled={disabled}
          aria-label={`Model: ${current?.display_name ?? "default"}`}
          className="max-w-52 min-w-11 shrink! text-muted!"
        >
          <span className="min-w-0 truncate">{current?.display_name ?? "Model"}</span>
          {choice.effort && <span className="shrink-0 text-muted max-sm:sr-only">{choice.effort}</span>}
          <ChevronDown aria-hidden className="size-3.5 shrink-0" />
        </Button>
      }
    >
      <Combobox
        label="Choose a model"
        options={options}
        empty="No model is set up."
        className="max-h-80"
        onPick={(option) => {
          choose(option.id);
          if ((models.find((one) => one.id === option.id)?.reasoning_efforts.length ?? 0) === 0) onOpenChange(false);
        }}
      />
      {isAdmin && (
        <Link to="/settings/models" className="border-t border-line px-3 py-2 text-muted hover:text-text">
          Add a model…
        </Link>
      )}
      {efforts.length > 0 && (
        <fieldset className="border-t border-line p-3">
          <legend className="sr-only">Effort</legend>
          <p className="mb-1.5 text-small text-muted">Effort</p>
          <div className="flex flex-wrap gap-1">
            {[null, ...efforts].map((effort) => (
              <button
                key={effort ?? "default"}
                type="button"
                aria-pressed={choice.effort === effort}
                onClick={() => {
                  if (choice.modelConfigId) write(effortKey(choice.modelConfigId), effort);
                  onChoose({ ...choice, effort });
                }}
                className={cx(
                  "rounded-md border px-2 py-0.5 text-small",
                  choice.effort === effort ? "border-accent bg-accent text-on-accent" : "border-line hover:bg-bg3",
                )}
              >
                {effort ?? "default"}
              </button>
            ))}
          </div>
        </fieldset>
      )}
    </Popover>
  );
});

function optionOf(model: KnownModel, chosen: string | null): Option {
  return {
    id: model.id,
    label: model.display_name,
    words: `${model.model} ${model.provider.display_name}`,
    group: model.provider.display_name,
    detail: context(model.context_limit),
    disabled: model.provider.available ? undefined : (model.provider.unavailable_reason ?? "Not available"),
    selected: model.id === chosen,
  };
}

export function read(key: string): string | null {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

export function write(key: string, value: string | null): void {
  try {
    if (value === null) localStorage.removeItem(key);
    else localStorage.setItem(key, value);
  } catch {
    // Without storage, the choice applies until the page is closed.
  }
}
