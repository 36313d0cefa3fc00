/**
 * Draws diagrams in a frame without an origin and without a network (see SANDBOX_POLICY of the server). The page sends
 * a port and then one job after the other; the frame answers with the picture as SVG, which the page shows as an image.
 */
import mermaid from "mermaid";

interface Job {
  id: number;
  source: string;
  dark: boolean;
}

// The colors of the page behind the diagram.
const BACKGROUND = { light: "#ffffff", dark: "#14161a" };

addEventListener(
  "message",
  (event) => {
    const port = event.ports[0];
    if (!port) return;
    let before: Promise<void> = Promise.resolve();
    port.onmessage = ({ data }: MessageEvent<Job>) => {
      before = before.then(async () => port.postMessage({ id: data.id, ...(await draw(data)) }));
    };
  },
  { once: true },
);

async function draw({ id, source, dark }: Job): Promise<object> {
  try {
    mermaid.initialize({
      startOnLoad: false,
      securityLevel: "strict",
      suppressErrorRendering: true,
      theme: dark ? "dark" : "default",
      // Labels as text of the picture: HTML inside of an image is drawn differently by each browser.
      htmlLabels: false,
      flowchart: { htmlLabels: false },
      fontFamily: "system-ui, sans-serif",
      maxTextSize: 20_000,
      maxEdges: 400,
    });
    const { svg } = await mermaid.render(`diagram-${id}`, source);
    const picture = new DOMParser().parseFromString(svg, "text/html").querySelector("svg");
    if (!picture) return { error: "The picture is empty." };
    const [, , width = 0, height = 0] = (picture.getAttribute("viewBox") ?? "").split(/[\s,]+/).map(Number);
    if (!(width > 0 && height > 0)) return { error: "The picture is empty." };
    picture.setAttribute("width", String(Math.ceil(width)));
    picture.setAttribute("height", String(Math.ceil(height)));
    picture.style.backgroundColor = dark ? BACKGROUND.dark : BACKGROUND.light;
    picture.style.maxWidth = "";
    return {
      svg: new XMLSerializer().serializeToString(picture),
      width: Math.ceil(width),
      height: Math.ceil(height),
    };
  } catch (error) {
    return { error: (error instanceof Error ? error.message : String(error)).split("\n")[0]?.replace(/:$/, ".") ?? "" };
  }
}
