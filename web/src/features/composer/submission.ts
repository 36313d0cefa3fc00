import type { SendBody } from "@/api/types.gen";
import { contentOf } from "@/chat/references";
import type { Part, ReferencePart } from "@/chat/types";
import type { ModelChoice } from "@/features/composer/model_picker";
import type { DraftFile } from "@/state/drafts";

/** A message as the composer submits it: `content` for the API, `parts` for the row that is shown at once. */
export interface Submission {
  content: SendBody["content"];
  parts: Part[];
  choice: ModelChoice;
  planMode: boolean;
  /** Interrupt the running turn and send this message first. */
  now: boolean;
}

/** Text, files and references that are in the box, or were sent without a confirmation. */
export interface Unsent {
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
