import { expect, test } from "vitest";
import type { ChatData } from "@/chat/reducer";
import { EMPTY } from "@/chat/reducer";
import type { Message, Part } from "@/chat/types";
import { type PhaseInput, phaseOf, silenceOf } from "./agent_phase";

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

test("a silence is told with its age, since the last sign of life", () => {
  const at = (seconds: number) => new Date(seconds * 1000).toISOString();
  const said = (role: string, seconds: number, content: object[] = []) =>
    ({ messages: new Map([[1, { id: 1, role, created_at: at(seconds), content }]]), order: [1] }) as never as ChatData;
  const told = (data: ChatData, preview: object | null, now: number) =>
    silenceOf({ ...data, clockSkew: 0, preview } as ChatData, now * 1000).text;
  const asked = said("user", 100);
  const calls = said("assistant", 100, [{ type: "tool-call", tool_call_id: "a" }]);

  expect(told(asked, null, 100)).toBe("Waiting for the model");
  expect(told(asked, null, 120)).toBe("Waiting for the model, 20 s");
  expect(told(asked, { heardAt: 0, since: 110_000 }, 120)).toBe("Waiting for the model, 10 s");
  expect(told(asked, { heardAt: 119_000, since: 0 }, 120)).toBe("Answering");
  expect(told(asked, { heardAt: 108_000, since: 0 }, 120)).toBe("Model silent, 12 s");
  expect(told(asked, { heardAt: 108_000, since: 0, stale: true }, 120)).toBe("Waiting for the model, 20 s");
  expect(told(calls, null, 145)).toBe("Waiting for the tool, 45 s");
  expect(told(calls, { heardAt: 110_000, since: 0 }, 155)).toBe("No output for 45 s");
  expect(told(calls, { heardAt: 150_000, since: 0 }, 152)).toBe("Running a tool");
});
