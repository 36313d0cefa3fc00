import { expect, test } from "vitest";
import { readKind, writeKind } from "./agent_kind_draft";

test("empty fields of a kind are not set", () => {
  const body = writeKind({ ...readKind(null), name: "review", description: " Reviews code " });
  expect(body).toEqual({
    description: "Reviews code",
    prompt: "",
    tools: null,
    read_only: false,
    model_config_id: null,
    reasoning_effort: null,
    max_minutes: null,
  });
});

test("a stored kind is written back unchanged", () => {
  const stored = {
    description: "Reviews code",
    prompt: "Be strict.",
    tools: ["read_file", "execute"],
    read_only: true,
    model_config_id: "m",
    reasoning_effort: "high" as const,
    max_minutes: 5,
  };
  const more = { name: "review", source: "deployment", updated_at: null, hidden_by: null };
  const draft = readKind({ ...stored, ...more });
  expect(draft.scope).toBe("deployment");
  expect(writeKind(draft)).toEqual(stored);
});
