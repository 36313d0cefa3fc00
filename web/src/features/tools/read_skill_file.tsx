import { BookOpen } from "lucide-react";
import { fields, text } from "@/chat/tool_texts";
import { languageOfPath } from "@/features/timeline/highlighter";
import { Code } from "./card_bodies";
import type { BodyProps, Tool } from "./tool_display";

function Body({ call }: BodyProps) {
  const content = text(fields(call.result).content);
  return content ? (
    <Code text={content} language={languageOfPath(text(fields(call.args).path))} label="Content" />
  ) : null;
}

export const readSkillFile: Tool = { icon: BookOpen, Body };
