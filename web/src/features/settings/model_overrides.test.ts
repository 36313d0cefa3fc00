import { describe, expect, it } from "vitest";
import { CHATS_OWN, chatOverride, chosenModel, subagentOverride } from "@/features/settings/model_overrides";

const override = (mode: "chat_default" | "deployment_default" | "model", id: string | null = null) => ({
  mode,
  model_config_id: id,
  reasoning_effort: null,
});

describe("personal models", () => {
  it("shows a model, the chat's own model, or the server's choice", () => {
    expect(chosenModel(override("model", "m1"))).toBe("m1");
    expect(chosenModel(override("chat_default"))).toBe(CHATS_OWN);
    expect(chosenModel(override("deployment_default"))).toBe("");
    expect(chosenModel(null)).toBe("");
  });

  it("clears the choice for the server's choice", () => {
    expect(subagentOverride("")).toBeNull();
    expect(chatOverride("")).toBeNull();
  });

  it("sends the mode that belongs to the choice", () => {
    expect(subagentOverride("m1")).toEqual({ mode: "model", model_config_id: "m1" });
    expect(subagentOverride(CHATS_OWN)).toEqual({ mode: "chat_default" });
    expect(chatOverride("m1")).toEqual({ mode: "model", model_config_id: "m1" });
  });
});
