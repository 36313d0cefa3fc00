import { expect, test } from "vitest";
import { SseReader } from "@/lib/sse";

test("events are read however the bytes are cut", () => {
  const text =
    'retry: 1000\n\nevent: batch\nid: 7\ndata: [{"a":1}]\n\n: hb\n\nevent: reconnect\ndata: {"code":1012}\n\n';
  for (let size = 1; size < text.length; size += 3) {
    const reader = new SseReader();
    const events = [];
    for (let at = 0; at < text.length; at += size) events.push(...reader.push(text.slice(at, at + size)));
    expect(events).toEqual([
      { event: "batch", data: '[{"a":1}]' },
      { event: "reconnect", data: '{"code":1012}' },
    ]);
  }
});
