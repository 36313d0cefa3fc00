import { X } from "lucide-react";
import { type Pill, pillText } from "@/chat/search_pills";

/** The filters of a search, each with a button to remove it. */
export function Pills({ pills, onRemove }: { pills: readonly Pill[]; onRemove: (pill: Pill) => void }) {
  if (pills.length === 0) return null;
  return (
    <ul aria-label="Filters" className="flex flex-wrap gap-1.5">
      {pills.map((pill) => (
        <li
          key={pillText(pill)}
          className="flex h-6 items-center rounded-full bg-bg3 pl-2.5 text-small pointer-coarse:h-9"
        >
          <span className="text-muted">{pill.name.replace(/_/g, " ")}:</span>
          <span className="ml-1 font-medium">{pill.value.replace(/^"(.*)"$/, "$1")}</span>
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
