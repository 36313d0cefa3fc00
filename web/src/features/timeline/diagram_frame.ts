/** Draws diagrams in a sandboxed frame: one hidden frame, which exists only while diagrams are drawn. */

export interface Drawn {
  svg: string;
  width: number;
  height: number;
}

type Answer = { id: number } & (Drawn | { error: string });

const FRAME = "/sandbox/diagram.html";
const MAX_SOURCE = 20_000;
// Chosen: a large diagram takes about a second. Whatever takes longer than this never ends.
const LIMIT_MS = 20_000;
const IDLE_MS = 60_000;
const MAX_KEPT = 60;

interface Frame {
  port: MessagePort;
  element: HTMLIFrameElement;
  waiting: Map<number, (answer: Answer) => void>;
}

let frame: Frame | null = null;
let idle: ReturnType<typeof setTimeout> | undefined;
let lastId = 0;
const kept = new Map<string, Drawn>();

export function keptDrawing(source: string, dark: boolean): Drawn | null {
  return kept.get(key(source, dark)) ?? null;
}

/** Draw a diagram. Rejects with a sentence for users. */
export async function drawDiagram(source: string, dark: boolean): Promise<Drawn> {
  if (source.length > MAX_SOURCE) throw new Error(`The diagram is longer than ${MAX_SOURCE} characters.`);
  const known = keptDrawing(source, dark);
  if (known) return known;
  const answer = await ask(source, dark);
  if ("error" in answer) throw new Error(answer.error);
  if (kept.size >= MAX_KEPT) kept.delete(kept.keys().next().value ?? "");
  kept.set(key(source, dark), answer);
  return answer;
}

const key = (source: string, dark: boolean) => `${dark ? "dark" : "light"}\n${source}`;

function ask(source: string, dark: boolean): Promise<Answer> {
  frame ??= open();
  const used = frame;
  clearTimeout(idle);
  lastId += 1;
  const id = lastId;
  return new Promise((resolve) => {
    const timer = setTimeout(() => {
      // The frame hangs in this diagram, so all that wait for it have failed.
      if (frame === used) close();
      for (const answer of [...used.waiting.values()]) answer({ id, error: "Drawing the diagram took too long." });
    }, LIMIT_MS);
    used.waiting.set(id, (answer) => {
      clearTimeout(timer);
      used.waiting.delete(id);
      if (used.waiting.size === 0 && frame === used) idle = setTimeout(close, IDLE_MS);
      resolve(answer);
    });
    used.port.postMessage({ id, source, dark });
  });
}

function open(): Frame {
  const channel = new MessageChannel();
  const element = document.createElement("iframe");
  element.setAttribute("sandbox", "allow-scripts");
  element.setAttribute("aria-hidden", "true");
  element.tabIndex = -1;
  element.title = "Diagrams";
  // Laid out, because the size of labels is measured, but not visible.
  element.style.cssText =
    "position:fixed;left:-4000px;top:0;width:1200px;height:800px;border:0;visibility:hidden;pointer-events:none";
  element.src = FRAME;
  const waiting: Frame["waiting"] = new Map();
  channel.port1.onmessage = ({ data }: MessageEvent<Answer>) => waiting.get(data.id)?.(data);
  element.addEventListener("load", () => element.contentWindow?.postMessage("port", "*", [channel.port2]), {
    once: true,
  });
  document.body.append(element);
  return { port: channel.port1, element, waiting };
}

function close(): void {
  frame?.port.close();
  frame?.element.remove();
  frame = null;
}
