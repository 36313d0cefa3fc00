import { useState } from "react";
import { Button } from "@/ui/button";

interface Props {
  /** What is commented on, in words. */
  about: string;
  /** What is typed already. */
  initial: string;
  /** It was opened just now, and not found again. */
  takesFocus: boolean;
  onType: (text: string) => void;
  onAdd: (text: string) => void;
  onCancel: () => void;
}

/** A remark on lines of a diff: Enter puts it into the composer. */
export function CommentBox({ about, initial, takesFocus, onType, onAdd, onCancel }: Props) {
  const [text, setText] = useState(initial);
  const add = () => text.trim() && onAdd(text.trim());
  return (
    <div className="sticky left-0 w-(--view) p-2 font-sans text-ui">
      <div className="shows-focus rounded-lg border border-control bg-bg1 p-2 shadow-pop">
        <textarea
          // biome-ignore lint/a11y/noAutofocus: where it opens by an act of the user, who goes on typing
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
