import { expect, test } from "vitest";
import { type PhaseInput, phaseOf } from "@/chat/phase";
import { EMPTY } from "@/chat/reducer";
import type { Message, Part } from "@/chat/types";

const call: Part = { type: "tool-call", tool_call_id: "c", tool_name: "wait_agent", args: {} };
const message = (id: number, role: string, content: Part[]) => ({ id, role, content }) as unknown as Message;
const at = (...messages: Message[]): PhaseInput => ({
  status: "running",
  data: { ...EMPTY, messages: new Map(messages.map((one) => [one.id, one])), order: messages.map((one) => one.id) },
  isLive: true,
  queuedForCapacity: false,
});

test("a turn that waits for its calls does not think", () => {
  const asked = message(1, "user", [{ type: "text", text: "go" }]);
  const calls = message(2, "assistant", [call]);
  const result = message(3, "tool", [
    { type: "tool-result", tool_call_id: "c", tool_name: "wait_agent", result: {}, is_error: false } as Part,
  ]);
  expect(phaseOf(at(asked))).toBe("thinking");
  expect(phaseOf(at(asked, calls))).toBe("tools");
  expect(phaseOf(at(asked, calls, result))).toBe("thinking");
  expect(phaseOf({ ...at(asked, calls), status: "interrupting" })).toBe("stopping");
});
