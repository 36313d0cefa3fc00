import { CircleStop } from "lucide-react";
import { fields, text } from "@/chat/tools";
import { Facts } from "@/features/tools/parts";
import type { BodyProps, Tool } from "@/features/tools/tool";

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
