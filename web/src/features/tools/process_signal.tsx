import { CircleStop } from "lucide-react";
import { fields, text } from "@/chat/tool_texts";
import { Facts } from "./card_bodies";
import type { BodyProps, Tool } from "./tool_display";

function Body({ call }: BodyProps) {
  const args = fields(call.args);
  return (
    <Facts
      facts={[
        ["Process", text(args.process_id)],
        ["Signal", text(args.signal)],
      ]}
    />
  );
}

export const processSignal: Tool = { icon: CircleStop, Body };
