/** Server-sent events out of a byte stream's text, in whatever pieces it comes. */
export interface ServerEvent {
  event: string;
  data: string;
}

export class SseReader {
  private rest = "";

  /** The events that are complete with this piece. Comments are heartbeats and give none. */
  push(piece: string): ServerEvent[] {
    this.rest += piece;
    const blocks = this.rest.split(/\r?\n\r?\n/);
    this.rest = blocks.pop() ?? "";
    return blocks.flatMap((block) => {
      let event = "message";
      const data: string[] = [];
      for (const line of block.split(/\r?\n/)) {
        if (line.startsWith("event:")) event = line.slice(6).trim();
        else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      }
      return data.length > 0 ? [{ event, data: data.join("\n") }] : [];
    });
  }
}
