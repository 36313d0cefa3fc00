/** The live log of a workspace operation. */
import { address } from "@/api/http";
import { keyHeaders } from "@/api/session_key";
import { SseReader } from "@/lib/sse";

/** Follow a log until it ends. `onLog` gets the whole text so far. Throws if the stream breaks. */
export async function followLog(
  operation: string,
  onLog: (text: string) => void,
  signal: AbortSignal,
  ask: typeof fetch = fetch,
): Promise<void> {
  const path = `/operations/${encodeURIComponent(operation)}/log`;
  const response = await ask(address(path, { follow: true }), {
    credentials: "same-origin",
    headers: keyHeaders(),
    signal,
  });
  if (!response.ok || !response.body) throw new Error(`The log is not there: status ${response.status}.`);
  const reader = response.body
    .pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>)
    .getReader();
  const events = new SseReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("The log was cut off.");
    for (const one of events.push(value)) {
      if (one.event === "end") return;
      if (one.event !== "log") continue;
      text += JSON.parse(one.data) as string;
      onLog(text);
    }
  }
}
