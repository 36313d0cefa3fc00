import katex from "katex";
import "katex/dist/katex.min.css";
import { memo } from "react";

/** The one place that writes markup: KaTeX's own, from a source it does not trust. Loaded by the first formula. */
export const Formula = memo(function Formula({ source, display }: { source: string; display: boolean }) {
  try {
    const html = katex.renderToString(source, {
      displayMode: display,
      trust: false,
      throwOnError: true,
      maxExpand: 1000,
    });
    // biome-ignore lint/security/noDangerouslySetInnerHtml: made by KaTeX with `trust: false`
    return <span className={display ? "block overflow-x-auto py-1" : ""} dangerouslySetInnerHTML={{ __html: html }} />;
  } catch (error) {
    return (
      <code className="text-danger" title={error instanceof Error ? error.message : "Not a formula"}>
        {source}
      </code>
    );
  }
});
