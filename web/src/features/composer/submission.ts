import type { BusyBehavior, SendBody } from "@/api/types.gen";
import { contentOf } from "@/chat/file_references";
import type { Part, ReferencePart } from "@/chat/types";
import type { ModelChoice } from "@/features/composer/model_picker";
import type { DraftFile } from "@/state/drafts";

/** A message as the composer submits it: `content` for the API, `parts` for the row that is shown at once. */
export interface Submission {
  content: SendBody["content"];
  parts: Part[];
  choice: ModelChoice;
  planMode: boolean;
  /** What to do while a turn runs: queue the message, add it at the next step, or stop the turn for it. */
  busy: BusyBehavior;
}

/** Text, files and references that are in the box. */
export interface BoxContent {
  text: string;
  files: DraftFile[];
  references: ReferencePart[];
}

export function submissionOf(
  text: string,
  references: readonly ReferencePart[],
  files: readonly DraftFile[],
): Pick<Submission, "content" | "parts"> {
  const written = contentOf(text, references);
  return {
    parts: [
      ...written,
      ...files.map((file) => ({
        type: "file" as const,
        file_id: file.id,
        name: file.name,
        media_type: file.mimeType,
      })),
    ],
    content: [...written, ...files.map((file) => ({ type: "file" as const, file_id: file.id }))],
  };
}
