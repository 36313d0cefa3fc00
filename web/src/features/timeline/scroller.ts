/** Scrolling of the timeline: its mode, and the row that keeps its position. It works on the DOM and renders nothing. */
export type Mode = "opening" | "anchored" | "following" | "reading";

const NEAR_END_PX = 48;
const USER_ACT_MS = 600;
/** The end counts as visible within this distance. Chosen: about the height of the last block, which changes. */
const UNSEEN_PX = 400;

export interface ScrollerState {
  mode: Mode;
  /** The distance from the end of the view to the end of the content. */
  below: number;
  /** The first visible row. */
  top: string | null;
}

interface Anchor {
  key: string;
  offset: number;
}

export class Scroller {
  mode: Mode = "opening";
  /** Whether the end of the content is visible, as of the last check. Growing text only moves the end down. */
  isEndSeen = true;
  private anchor: Anchor | null = null;
  private lastTop = 0;
  private actedAt = Number.NEGATIVE_INFINITY;
  private promptKey: string | null = null;
  private topKey: string | null = null;
  private found: HTMLElement | null = null;
  private readonly box: HTMLElement;
  /** The list of rows. Its first and last child are spacers for rows that are not mounted. */
  private readonly list: HTMLElement;
  private readonly tail: HTMLElement;
  private readonly onChange: (state: ScrollerState) => void;

  constructor(box: HTMLElement, list: HTMLElement, tail: HTMLElement, onChange: (state: ScrollerState) => void) {
    this.box = box;
    this.list = list;
    this.tail = tail;
    this.onChange = onChange;
  }

  /** Note a wheel, touch or key event: the next scroll event is caused by the user. */
  acted(): void {
    this.actedAt = performance.now();
    if (this.mode === "opening") this.mode = "reading";
  }

  /** The rows of a chat that opened have their heights; from now on the place is kept, not the end. */
  endOpening(): void {
    if (this.mode === "opening") this.setMode("reading");
  }

  scrolled(): void {
    const top = this.box.scrollTop;
    const byUser = performance.now() - this.actedAt < USER_ACT_MS;
    if (byUser) {
      if (top < this.lastTop - 1) this.setMode("reading");
      else if (top > this.lastTop && this.below() < NEAR_END_PX) this.setMode("following");
    }
    this.lastTop = top;
    this.remember();
    this.tell();
  }

  /** Restore the scroll position after the content changed its size. */
  changed(): void {
    this.layTail();
    if (this.mode === "following" || this.mode === "opening") this.toEnd();
    else this.restore();
    this.lastTop = this.box.scrollTop;
    this.remember();
    this.tell();
  }

  /** Scroll a sent message to the top; the answer grows below it. */
  anchorTo(key: string): void {
    this.promptKey = key;
    this.mode = "anchored";
    this.layTail();
    const row = this.row(key);
    if (row) this.box.scrollTop += row.getBoundingClientRect().top - this.box.getBoundingClientRect().top;
    this.lastTop = this.box.scrollTop;
    this.remember();
    this.tell();
  }

  /** Change the key of the anchored row, because the message was stored. */
  renameAnchor(key: string): void {
    if (this.promptKey) this.promptKey = key;
  }

  follow(): void {
    this.promptKey = null;
    this.mode = "following";
    this.layTail();
    this.toEnd();
    this.tell();
  }

  setMode(mode: Mode): void {
    if (mode === "following") this.promptKey = null;
    if (this.mode !== mode) {
      this.mode = mode;
      this.layTail();
    }
  }

  /** Scroll to a row, with a margin at the top. */
  show(key: string, prefix = false): boolean {
    const row = prefix ? this.box.querySelector<HTMLElement>(`[data-key^="${CSS.escape(key)}"]`) : this.row(key);
    if (!row) return false;
    this.mode = "reading";
    this.box.scrollTop += row.getBoundingClientRect().top - this.box.getBoundingClientRect().top - 48;
    this.lastTop = this.box.scrollTop;
    this.remember();
    this.tell();
    return true;
  }

  place(): Anchor | null {
    return this.mode === "following" || this.below() < NEAR_END_PX ? null : this.anchor;
  }

  restorePlace(place: Anchor): void {
    this.mode = "reading";
    this.anchor = place;
    this.restore();
  }

  private row(key: string): HTMLElement | null {
    // Cached, because a lookup in the DOM is slow and this runs in every frame.
    if (!this.found?.isConnected || this.found.dataset.key !== key) {
      this.found = this.box.querySelector<HTMLElement>(`[data-key="${CSS.escape(key)}"]`);
    }
    return this.found;
  }

  private toEnd(): void {
    this.box.scrollTop = this.box.scrollHeight;
    this.lastTop = this.box.scrollTop;
  }

  private below(): number {
    const spacer = this.tail.offsetHeight;
    return this.box.scrollHeight - spacer - this.box.scrollTop - this.box.clientHeight;
  }

  /** Set the space below the content, so that a sent message can be at the top while its answer is short. */
  private layTail(): void {
    let room = 0;
    const row = this.promptKey ? this.row(this.promptKey) : null;
    // The row is missing for a moment while it is stored; the space is kept.
    if (this.promptKey && !row && this.mode !== "following") return;
    if (row && this.mode !== "following") {
      const used = this.tail.getBoundingClientRect().top - row.getBoundingClientRect().top;
      // The padding below the tail is part of the space.
      room = Math.max(0, this.box.clientHeight - used - 16);
    }
    const height = `${Math.floor(room)}px`;
    if (this.tail.style.height !== height) this.tail.style.height = height;
  }

  /** Remember the first visible row and its offset. */
  private remember(): void {
    const top = this.box.getBoundingClientRect().top;
    const row = this.firstBelow(top + 1);
    this.anchor = row ? { key: row.dataset.key ?? "", offset: row.getBoundingClientRect().top - top } : null;
    // A row of which only the edge is visible does not count.
    const read = row && row.getBoundingClientRect().bottom <= top + 8 ? row.nextElementSibling : row;
    this.topKey = (read as HTMLElement | null)?.dataset.key ?? null;
  }

  /** Return the first row that ends below an offset, by binary search. */
  private firstBelow(edge: number): HTMLElement | null {
    const rows = this.list.children;
    let low = 0;
    let high = rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((rows[middle] as Element).getBoundingClientRect().bottom > edge) high = middle;
      else low = middle + 1;
    }
    for (; low < rows.length; low += 1) {
      const row = rows[low] as HTMLElement;
      // The key of a day row changes when older messages are loaded, so it is not used.
      if (row.dataset.key && row.dataset.kind !== "day") return row;
    }
    // Below the stored rows are the messages that are being sent.
    for (const row of this.tail.previousElementSibling?.children ?? []) {
      if ((row as HTMLElement).dataset.key && row.getBoundingClientRect().bottom > edge) return row as HTMLElement;
    }
    return null;
  }

  private restore(): void {
    if (!this.anchor) return;
    const row = this.row(this.anchor.key);
    if (!row) return;
    const now = row.getBoundingClientRect().top - this.box.getBoundingClientRect().top;
    const moved = now - this.anchor.offset;
    if (Math.abs(moved) >= 1) this.box.scrollTop += moved;
  }

  private tell(): void {
    const below = this.below();
    this.isEndSeen = below < UNSEEN_PX;
    this.onChange({ mode: this.mode, below, top: this.topKey });
  }
}
