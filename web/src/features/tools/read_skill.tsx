import { BookOpen } from "lucide-react";
import { fields, text } from "@/chat/tool_texts";
import { Markdown } from "@/features/timeline/markdown";
import { Box } from "./card_bodies";
import type { BodyProps, Tool } from "./tool_display";

function Body({ call }: BodyProps) {
  const body = text(fields(call.result).body);
  return body ? (
    <Box label="Skill" copy={body}>
      <Markdown text={body} />
    </Box>
  ) : null;
}

export const readSkill: Tool = { icon: BookOpen, Body };
