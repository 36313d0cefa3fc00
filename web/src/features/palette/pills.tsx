import { X } from "lucide-react";
import { type Pill, pillText, STATES } from "@/chat/search_pills";
import { cx } from "@/ui/cx";

interface Props {
  pills: readonly Pill[];
  /** The filter that the server refused. */
  wrong?: Pill | undefined;
  onRemove: (pill: Pill) => void;
}

/** The filters of a search, each with a button to remove it. */
export function Pills({ pills, wrong, onRemove }: Props) {
  if (pills.length === 0) return null;
  return (
    <ul aria-label="Filters" className="flex flex-wrap gap-1.5">
      {pills.map((pill) => (
        <li
          key={pillText(pill)}
          className={cx(
            "flex h-6 items-center rounded-full bg-bg3 pl-2.5 text-small pointer-coarse:h-9",
            pill === wrong && "text-danger outline-1 outline-danger",
          )}
        >
          {pill === wrong && <span className="sr-only">Not valid: </span>}
          <span className={pill === wrong ? "" : "text-muted"}>{pill.name.replace(/_/g, " ")}:</span>
          <span className="ml-1 font-medium">{shownValue(pill)}</span>
          <button
            type="button"
            aria-label={`Remove filter ${pillText(pill)}`}
            onClick={() => onRemove(pill)}
            className="ml-0.5 grid size-6 place-items-center rounded-full text-muted hover:text-text pointer-coarse:size-9 [&_svg]:size-3.5"
          >
            <X aria-hidden />
          </button>
        </li>
      ))}
    </ul>
  );
}

/** Return the value as people read it. */
function shownValue({ name, value }: Pill): string {
  const plain = value.replace(/^"(.*)"$/, "$1");
  return (name === "status" && STATES[plain]) || plain;
}
