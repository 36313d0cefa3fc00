import { type KeyboardEvent, type ReactNode, useEffect, useId, useMemo, useRef, useState } from "react";
import { cx } from "@/ui/cx";

export interface Option {
  id: string;
  label: string;
  /** Additional search words. */
  words?: string;
  group?: string;
  detail?: ReactNode;
  icon?: ReactNode;
  /** The reason why the option cannot be chosen. */
  disabled?: string | undefined;
  selected?: boolean;
}

/** Return how well an option matches the query; 0 is no match. All words must occur; a match at the start counts more. */
export function score(option: Option, query: string): number {
  const text = `${option.label} ${option.words ?? ""}`.toLowerCase();
  let total = 1;
  for (const word of query.toLowerCase().split(/\s+/).filter(Boolean)) {
    const at = text.indexOf(word);
    if (at < 0) return 0;
    total += at === 0 ? 3 : /\W/.test(text[at - 1] ?? "") ? 2 : 1;
  }
  return total;
}

/** Return the matching options, best first; without a query, all in the given order. */
export function matching(options: Option[], query: string): Option[] {
  if (!query.trim()) return options;
  return options
    .map((option) => ({ option, points: score(option, query) }))
    .filter((one) => one.points > 0)
    .sort((a, b) => b.points - a.points)
    .map((one) => one.option);
}

interface ListProps {
  id: string;
  options: Option[];
  active: number;
  onActive: (index: number) => void;
  onPick: (option: Option) => void;
  empty: ReactNode;
  label: string;
  className?: string;
}

/** The list of a combobox. The field keeps the focus and refers to the active option. */
export function OptionList({ id, options, active, onActive, onPick, empty, label, className }: ListProps) {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    box.current?.querySelector(`[data-index="${active}"]`)?.scrollIntoView({ block: "nearest" });
  }, [active]);
  if (options.length === 0) return <p className="px-3 py-4 text-muted">{empty}</p>;
  return (
    <div ref={box} id={id} role="listbox" aria-label={label} className={cx("overflow-y-auto p-1", className)}>
      {options.map((option, index) => {
        const heading = option.group && option.group !== options[index - 1]?.group ? option.group : null;
        return (
          <div key={option.id} role="presentation">
            {heading && (
              <div role="presentation" className="px-2 pt-2 pb-1 text-small font-medium text-muted">
                {heading}
              </div>
            )}
            {/* biome-ignore lint/a11y/useKeyWithClickEvents: the field handles the keys */}
            <div
              id={`${id}-${index}`}
              data-index={index}
              role="option"
              tabIndex={-1}
              aria-selected={index === active}
              aria-disabled={Boolean(option.disabled)}
              onPointerMove={() => onActive(index)}
              onMouseDown={(event) => event.preventDefault()}
              onClick={() => !option.disabled && onPick(option)}
              className={cx(
                "flex cursor-default items-center gap-2 rounded-md px-2 py-1.5 [&_svg]:size-4 [&_svg]:shrink-0 pointer-coarse:min-h-11",
                index === active && "bg-bg3",
                option.disabled && "opacity-55",
              )}
            >
              {option.icon}
              <span className="min-w-0 flex-1">
                <span className="block truncate">{option.label}</span>
                {option.disabled && <span className="block text-small text-muted">{option.disabled}</span>}
              </span>
              {option.detail && <span className="shrink-0 text-small text-muted">{option.detail}</span>}
              {option.selected && <span aria-hidden>✓</span>}
            </div>
          </div>
        );
      })}
    </div>
  );
}

/** Return the next or previous option that can be chosen. */
export function step(options: readonly Option[], from: number, by: 1 | -1): number {
  for (let i = 1; i <= options.length; i += 1) {
    const at = (from + by * i + options.length * i) % options.length;
    if (!options[at]?.disabled) return at;
  }
  return from;
}

interface ComboboxProps {
  label: string;
  options: Option[];
  onPick: (option: Option, event: { newTab: boolean }) => void;
  placeholder?: string;
  /** If given, the parent filters the options, for results of the server. */
  query?: string;
  onQuery?: (query: string) => void;
  empty?: ReactNode;
  footer?: ReactNode;
  /** Content between the field and the list. */
  before?: ReactNode;
  /** Called for Backspace in an empty field. */
  onBack?: () => void;
  className?: string;
}

/** A search field with a list of options. */
export function Combobox({
  label,
  options,
  onPick,
  placeholder,
  query,
  onQuery,
  empty,
  footer,
  before,
  onBack,
  className,
}: ComboboxProps) {
  const id = useId();
  const [own, setOwn] = useState("");
  const typed = query ?? own;
  const shown = useMemo(() => (query === undefined ? matching(options, own) : options), [options, own, query]);
  // The active option by id, once the user has moved to one, because later results may change its index. Otherwise the
  // best match is active.
  const [active, setActive] = useState<{ index: number; id?: string | undefined }>({ index: 0 });
  const goTo = (index: number) => setActive({ index, id: shown[index]?.id });
  const kept = shown.findIndex((one) => one.id === active.id);
  const at = kept >= 0 ? kept : Math.min(active.index, Math.max(0, shown.length - 1));

  function onKeyDown(event: KeyboardEvent) {
    if (event.nativeEvent.isComposing) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      goTo(step(shown, at, event.key === "ArrowDown" ? 1 : -1));
    } else if (event.key === "Enter") {
      event.preventDefault();
      const option = shown[at];
      if (option && !option.disabled) onPick(option, { newTab: event.metaKey || event.ctrlKey });
    } else if (event.key === "Backspace" && typed === "" && onBack) {
      event.preventDefault();
      onBack();
    }
  }

  return (
    <div className={cx("flex min-h-0 flex-col", className)}>
      <input
        // biome-ignore lint/a11y/noAutofocus: the user opened it to type
        autoFocus
        role="combobox"
        aria-label={label}
        aria-expanded
        aria-controls={id}
        aria-activedescendant={shown.length > 0 ? `${id}-${at}` : undefined}
        value={typed}
        placeholder={placeholder ?? label}
        onChange={(event) => {
          setActive({ index: 0 });
          if (onQuery) onQuery(event.target.value);
          else setOwn(event.target.value);
        }}
        onKeyDown={onKeyDown}
        className="w-full border-b-2 border-line bg-transparent px-3 py-2 outline-none focus-visible:border-accent placeholder:text-muted pointer-coarse:text-[16px]"
      />
      {before && <div className="px-3 empty:hidden not-empty:pt-2">{before}</div>}
      <OptionList
        id={id}
        label={label}
        options={shown}
        active={at}
        onActive={goTo}
        onPick={(option) => onPick(option, { newTab: false })}
        empty={empty ?? "Nothing matches."}
        className="min-h-0 flex-1"
      />
      {footer}
    </div>
  );
}
