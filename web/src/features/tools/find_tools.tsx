import { Search } from "lucide-react";
import { fields, list, text } from "@/chat/tool_texts";
import { Rows } from "./card_bodies";
import type { BodyProps, Tool } from "./tool_display";

function Body({ call }: BodyProps) {
  const result = fields(call.result);
  const active = new Set(Array.isArray(result.activated) ? result.activated : []);
  return (
    <Rows
      head={["Tool", "What it does", "State"]}
      rows={list(result.matches).map((one) => [
        text(one.name),
        text(one.description),
        active.has(one.name) ? "ready" : "",
      ])}
    />
  );
}

export const findTools: Tool = { icon: Search, Body, showsResult: true };
