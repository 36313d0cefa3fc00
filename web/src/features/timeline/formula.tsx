import katex from "katex";
import "katex/dist/katex.min.css";
import { memo } from "react";

/** A formula, rendered by KaTeX with `trust: false`. The only component that sets HTML. Loaded with the first formula. */
export const Formula = memo(function Formula({ source, display }: { source: string; display: boolean }) {
  try {
    const html = katex.renderToString(source, {
      displayMode: display,
      trust: false,
      throwOnError: true,
      maxExpand: 1000,
    });
    // biome-ignore lint/security/noDangerouslySetInnerHtml: output of KaTeX with `trust: false`
    return <span className={display ? "block overflow-x-auto py-1" : ""} dangerouslySetInnerHTML={{ __html: html }} />;
  } catch (error) {
    return (
      <code className="text-danger" title={error instanceof Error ? error.message : "Not a formula"}>
        {source}
      </code>
    );
  }
});
