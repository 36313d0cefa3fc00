/** An incremental parser for server-sent events. */
export interface ServerEvent {
  event: string;
  data: string;
}

export class SseReader {
  private rest = "";

  /** Return the events that this piece completes. Comments are ignored. */
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
