import { BookOpen } from "lucide-react";
import { fields, text } from "@/chat/tools";
import { Markdown } from "@/features/timeline/markdown";
import { Box } from "@/features/tools/parts";
import type { BodyProps, Tool } from "@/features/tools/tool";

function Body({ call }: BodyProps) {
  const body = text(fields(call.result).body);
  return body ? (
    <Box label="Skill" copy={body}>
      <Markdown text={body} />
    </Box>
  ) : null;
}

export const readSkill: Tool = { icon: BookOpen, Body };
