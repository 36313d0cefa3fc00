import { MessageCircleQuestion } from "lucide-react";
import { type ComponentProps, Suspense } from "react";
import { lazyPart } from "@/ui/lazy_part";
import type { Tool } from "./tool_display";

// Loaded with the first question, because few chats have any.
const QuestionCard = lazyPart(async () => (await import("@/features/tools/question_form")).QuestionCard);

function Card(props: ComponentProps<typeof QuestionCard>) {
  return (
    <Suspense fallback={<div className="h-44 rounded-lg border border-line bg-bg1" />}>
      <QuestionCard {...props} />
    </Suspense>
  );
}

export const askUserQuestion: Tool = { icon: MessageCircleQuestion, Card };
