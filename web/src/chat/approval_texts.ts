/** Texts of questions about tool calls. They are loaded with the first question. */
import { baseName, capital, fields, list, some, text, words } from "./tool_texts";

/** Return what a call would do, as an action that a user can allow: "Run a command", "Edit 2 files". */
export function actionOf(name: string, input: unknown): string {
  const args = fields(input);
  const path = baseName(text(args.path));
  switch (name) {
    case "execute":
      return text(args.model_intent) || "Run a command";
    case "write_file":
      return `Write ${path || "a file"}`;
    case "edit_files": {
      const files = list(args.files);
      return `Edit ${files.length === 1 ? baseName(text(files[0]?.path)) || "a file" : some(files.length, "file")}`;
    }
    case "read_file":
      return `Read ${path || "a file"}`;
    case "attach_file":
      return `Attach ${path || "a file"}`;
    default:
      return text(args.model_intent) || capital(words(name));
  }
}
