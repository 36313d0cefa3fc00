import { BookOpen } from "lucide-react";
import { fields, text } from "@/chat/tools";
import { languageOfPath } from "@/features/timeline/highlighter";
import { Code } from "@/features/tools/parts";
import type { BodyProps, Tool } from "@/features/tools/tool";

function Body({ call }: BodyProps) {
  const content = text(fields(call.result).content);
  return content ? (
    <Code text={content} language={languageOfPath(text(fields(call.args).path))} label="Content" />
  ) : null;
}

export const readSkillFile: Tool = { icon: BookOpen, Body };
