import { expect, test } from "vitest";
import { followLog } from "@/state/workspace_operation_log";

function answering(...pieces: string[]): { ask: typeof fetch; asked: string[] } {
  const asked: string[] = [];
  const ask = async (url: unknown) => {
    asked.push(String(url));
    const coder = new TextEncoder();
    const body = new ReadableStream({
      start(controller) {
        for (const piece of pieces) controller.enqueue(coder.encode(piece));
        controller.close();
      },
    });
    return new Response(body, { headers: { "Content-Type": "text/event-stream" } });
  };
  return { ask: ask as typeof fetch, asked };
}

test("a log grows with each event until its end", async () => {
  const { ask, asked } = answering(
    'event: log\ndata: "one\\n"\n\n: still',
    ' here\n\nevent: log\ndata: "two\\n"\n\nevent: end\ndata: "succeeded"\n\n',
  );
  const seen: string[] = [];

  await followLog("op-1", (text) => seen.push(text), new AbortController().signal, ask);

  expect(asked).toEqual(["/api/v1/operations/op-1/log?follow=true"]);
  expect(seen).toEqual(["one\n", "one\ntwo\n"]);
});

test("a log without an end was cut off, and one that is refused is no log", async () => {
  const { ask } = answering('event: log\ndata: "one\\n"\n\n');
  const signal = new AbortController().signal;

  await expect(followLog("op-1", () => {}, signal, ask)).rejects.toThrow("cut off");
  const refuse = (async () => new Response("", { status: 404 })) as unknown as typeof fetch;
  await expect(followLog("op-1", () => {}, signal, refuse)).rejects.toThrow("404");
});
