/** Terminal output: colors become spans, carriage returns overwrite lines, other control sequences are removed. */
export interface Span {
  text: string;
  color: number | null;
  bold: boolean;
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: matches control characters
const SEQUENCE = /\u001b\[([0-9;]*)([A-Za-z])|\u001b\][^\u0007]*(?:\u0007|\u001b\\)|\u001b./g;

/** Apply carriage returns: only the last text of a line is kept. */
export function overwrite(output: string): string {
  if (!output.includes("\r")) return output;
  return output
    .replace(/\r+\n/g, "\n")
    .split("\n")
    .map((line) => {
      let shown = "";
      for (const piece of line.split("\r")) shown = piece + shown.slice(piece.length);
      return shown;
    })
    .join("\n");
}

export function ansiSpans(output: string): Span[] {
  const source = overwrite(output);
  const spans: Span[] = [];
  let color: number | null = null;
  let bold = false;
  let from = 0;
  const put = (text: string) => {
    if (text) spans.push({ text, color, bold });
  };
  for (const match of source.matchAll(SEQUENCE)) {
    put(source.slice(from, match.index));
    from = match.index + match[0].length;
    if (match[2] !== "m") continue;
    for (const code of (match[1] || "0").split(";").map(Number)) {
      if (code === 0) {
        color = null;
        bold = false;
      } else if (code === 1) bold = true;
      else if (code === 22) bold = false;
      else if (code === 39) color = null;
      else if (code >= 30 && code <= 37) color = code - 30;
      else if (code >= 90 && code <= 97) color = code - 90;
    }
  }
  put(source.slice(from));
  return spans;
}
