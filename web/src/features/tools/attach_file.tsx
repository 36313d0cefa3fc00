import { Paperclip } from "lucide-react";
import { fields, number, text } from "@/chat/tool_texts";
import { FileChip } from "@/features/timeline/message_files";
import type { BodyProps, Tool } from "./tool_display";

function Body({ call }: BodyProps) {
  const result = fields(call.result);
  if (!text(result.file_id)) return null;
  return (
    <FileChip
      id={text(result.file_id)}
      name={text(result.name)}
      mimeType={text(result.media_type)}
      size={number(result.size)}
    />
  );
}

export const attachFile: Tool = { icon: Paperclip, Body };
