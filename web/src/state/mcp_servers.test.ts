import { expect, it } from "vitest";
import { resultOf } from "@/state/mcp_servers";

const OWN = "https://rookery.example";
const told = { type: "rookery:mcp-login", server_id: "s-1", ok: true, message: "You are connected." };

it("believes only pages of its own origin, and only about the server of the login", () => {
  expect(resultOf({ origin: OWN, data: told }, OWN, "s-1")).toEqual({ ok: true, message: "You are connected." });
  expect(resultOf({ origin: "https://rookery.example.evil.example", data: told }, OWN, "s-1")).toBeNull();
  expect(resultOf({ origin: OWN, data: told }, OWN, "s-2")).toBeNull();
  expect(resultOf({ origin: OWN, data: { ...told, type: "other" } }, OWN, "s-1")).toBeNull();
  expect(resultOf({ origin: OWN, data: "text" }, OWN, "s-1")).toBeNull();
});

it("has words for a failure without a message", () => {
  expect(resultOf({ origin: OWN, data: { ...told, ok: false, message: "" } }, OWN, "s-1")).toEqual({
    ok: false,
    message: "The login failed.",
  });
});
