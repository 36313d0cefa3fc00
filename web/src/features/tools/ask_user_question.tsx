import { MessageCircleQuestion } from "lucide-react";
import { QuestionCard } from "@/features/tools/question_form";
import type { Tool } from "@/features/tools/tool";

export const askUserQuestion: Tool = { icon: MessageCircleQuestion, Card: QuestionCard };
