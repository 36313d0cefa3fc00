import { afterEach, expect, test } from "vitest";
import { forgetReasons, giveReason, reasonHeaders, reasonOf } from "./access_reasons";

afterEach(forgetReasons);

test("a reason goes with what is read of its chat, and with nothing else", () => {
  giveReason("c1", "  Asked by its owner. ");

  const header = { "Rookery-Break-Glass": "Asked by its owner." };
  expect(reasonHeaders("/chats/c1")).toEqual(header);
  expect(reasonHeaders("/chats/c1/messages")).toEqual(header);
  expect(reasonHeaders("/chats/c12")).toEqual({});
  expect(reasonHeaders("/chats")).toEqual({});
  expect(reasonHeaders("/users/me")).toEqual({});
});

test("letters that headers cannot carry go as bytes of UTF-8", () => {
  giveReason("c1", "Prüfung für Łukasz");

  const sent = reasonHeaders("/chats/c1")["Rookery-Break-Glass"] ?? "";
  expect(() => new Headers({ x: sent })).not.toThrow();
  expect(Buffer.from(sent, "latin1").toString("utf8")).toBe("Prüfung für Łukasz");
});

test("who signs out takes the reasons along", () => {
  giveReason("c1", "Asked by its owner.");
  forgetReasons();
  expect(reasonHeaders("/chats/c1")).toEqual({});
});

test("what belongs to a chat and has an address of its own says the same", () => {
  giveReason("chat-with-files", "the owner asked me to look");

  expect(reasonOf("chat-with-files")).toEqual(reasonHeaders("/chats/chat-with-files"));
  expect(Object.keys(reasonOf("chat-with-files"))).toHaveLength(1);
  expect(reasonOf("another")).toEqual({});
});
