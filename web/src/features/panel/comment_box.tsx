import { useState } from "react";
import { Button } from "@/ui/button";

interface Props {
  /** A description of the lines that are commented on. */
  about: string;
  /** The text typed so far. */
  initial: string;
  /** Whether the user has just opened it; a restored box does not take the focus. */
  takesFocus: boolean;
  onType: (text: string) => void;
  onAdd: (text: string) => void;
  onCancel: () => void;
}

/** A comment on lines of a diff. Enter adds it to the composer. */
export function CommentBox({ about, initial, takesFocus, onType, onAdd, onCancel }: Props) {
  const [text, setText] = useState(initial);
  const add = () => text.trim() && onAdd(text.trim());
  return (
    <div className="sticky left-0 w-(--view) p-2 font-sans text-ui">
      <div className="shows-focus rounded-lg border border-control bg-bg1 p-2 shadow-pop">
        <textarea
          // biome-ignore lint/a11y/noAutofocus: the user opened it to type
          autoFocus={takesFocus}
          aria-label={`Comment on ${about}`}
          placeholder="What should the agent do here?"
          rows={2}
          value={text}
          onChange={(event) => {
            setText(event.target.value);
            onType(event.target.value);
          }}
          onKeyDown={(event) => {
            event.stopPropagation();
            if (event.nativeEvent.isComposing) return;
            if (event.key === "Escape") onCancel();
            if (event.key !== "Enter" || event.shiftKey) return;
            event.preventDefault();
            add();
          }}
          className="block max-h-40 w-full resize-none bg-transparent px-1 outline-none [field-sizing:content] placeholder:text-muted pointer-coarse:text-[16px]"
        />
        <div className="mt-2 flex items-center gap-2">
          <span className="min-w-0 flex-1 truncate text-small text-muted">{about}</span>
          <Button size="small" kind="ghost" onClick={onCancel}>
            Cancel
          </Button>
          <Button size="small" kind="primary" disabled={!text.trim()} onClick={add}>
            Add to message
          </Button>
        </div>
      </div>
    </div>
  );
}
