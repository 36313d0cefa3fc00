import { Code, Download, Maximize2, Workflow } from "lucide-react";
import { memo, useEffect, useState, useSyncExternalStore } from "react";
import { type Drawn, drawDiagram, keptDrawing } from "@/features/timeline/diagram_frame";
import { Lightbox } from "@/features/timeline/lightbox";
import { IconButton } from "@/ui/button";
import { CodeBlock, CopyButton, download } from "./code_block";

/** A Mermaid diagram, drawn in a sandboxed frame and shown as an image. If that fails, its source is shown. */
export const Diagram = memo(function Diagram({ source }: { source: string }) {
  const dark = useSyncExternalStore(watchTheme, () => document.documentElement.dataset.theme === "dark");
  const [drawn, setDrawn] = useState<Drawn | null>(() => keptDrawing(source, dark));
  const [problem, setProblem] = useState<string | null>(null);
  const [showsSource, setShowsSource] = useState(false);
  const [at, setAt] = useState<number | null>(null);
  useEffect(() => {
    let gone = false;
    setProblem(null);
    drawDiagram(source, dark).then(
      (done) => gone || setDrawn(done),
      (error: Error) => gone || setProblem(error.message),
    );
    return () => {
      gone = true;
    };
  }, [source, dark]);

  if (problem !== null)
    return (
      <div className="my-3">
        <CodeBlock code={source} language="mermaid" />
        <p className="text-small text-muted">The diagram cannot be drawn. {problem}</p>
      </div>
    );
  const address = drawn ? `data:image/svg+xml;charset=utf-8,${encodeURIComponent(drawn.svg)}` : null;
  return (
    <figure className="my-3 overflow-hidden rounded-lg border border-line">
      <div className="flex h-8 items-center gap-1 border-b border-line bg-bg2 pr-1 pl-3 text-small text-muted">
        <span className="min-w-0 flex-1 truncate">{nameOf(source)}</span>
        <IconButton
          label={showsSource ? "Show the diagram" : "Show the source"}
          size="small"
          onClick={() => setShowsSource(!showsSource)}
        >
          {showsSource ? <Workflow /> : <Code />}
        </IconButton>
        {drawn && (
          <IconButton label="Download the diagram" size="small" onClick={() => download(drawn.svg, "diagram.svg")}>
            <Download />
          </IconButton>
        )}
        <IconButton label="Enlarge the diagram" size="small" disabled={!address} onClick={() => setAt(0)}>
          <Maximize2 />
        </IconButton>
        <CopyButton text={() => source} label="Copy the source" />
      </div>
      {showsSource || !drawn || !address ? (
        <pre tabIndex={0} aria-busy={!drawn} className="overflow-x-auto px-3 py-2 font-mono text-code">
          {source}
        </pre>
      ) : (
        <div className="overflow-x-auto p-3" tabIndex={0}>
          <img
            src={address}
            alt={`${nameOf(source)}. Its source is available with the button “Show the source”.`}
            width={drawn.width}
            height={drawn.height}
            className="mx-auto h-auto max-w-full min-w-[min(100%,20rem)]"
          />
        </div>
      )}
      {address && (
        <Lightbox chatId="" pictures={[{ name: nameOf(source), id: null, data: address }]} at={at} onAt={setAt} />
      )}
    </figure>
  );
});

function watchTheme(onChange: () => void): () => void {
  const observer = new MutationObserver(onChange);
  observer.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  return () => observer.disconnect();
}

const KINDS: Record<string, string> = {
  graph: "Flowchart",
  flowchart: "Flowchart",
  sequencediagram: "Sequence diagram",
  classdiagram: "Class diagram",
  statediagram: "State diagram",
  erdiagram: "Entity relationship diagram",
  gantt: "Gantt chart",
  pie: "Pie chart",
  mindmap: "Mind map",
  timeline: "Timeline",
  gitgraph: "Git graph",
};

/** Return the kind of a diagram, from the first word of its source. */
function nameOf(source: string): string {
  const body = source.replace(/^\s*---[\s\S]*?\n---\s*\n/, "").replace(/^\s*%%.*$/gm, "");
  const word = /[A-Za-z]+/.exec(body)?.[0].toLowerCase() ?? "";
  return KINDS[word] ?? "Diagram";
}
