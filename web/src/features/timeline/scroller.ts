/** The scroll of a timeline: three modes, and the row that keeps its place. DOM only; React renders nothing for it. */
export type Mode = "opening" | "anchored" | "following" | "reading";

const NEAR_END_PX = 48;
const USER_ACT_MS = 600;
/** Chosen: what changes while text arrives is the last block, of which this much or less is above its end. */
const UNSEEN_PX = 400;

export interface ScrollerState {
  mode: Mode;
  /** How far the end of the content is below the view. */
  below: number;
  /** The first row in view. */
  top: string | null;
}

interface Anchor {
  key: string;
  offset: number;
}

export class Scroller {
  mode: Mode = "opening";
  /** Whether what arrives at the end can be seen. As of the last change: growing text moves the end only downwards. */
  isEndSeen = true;
  private anchor: Anchor | null = null;
  private lastTop = 0;
  private actedAt = Number.NEGATIVE_INFINITY;
  private promptKey: string | null = null;
  private topKey: string | null = null;
  private found: HTMLElement | null = null;
  private readonly box: HTMLElement;
  /** Its children are the rows, between two that stand for rows which are not mounted. */
  private readonly list: HTMLElement;
  private readonly tail: HTMLElement;
  private readonly onChange: (state: ScrollerState) => void;

  constructor(box: HTMLElement, list: HTMLElement, tail: HTMLElement, onChange: (state: ScrollerState) => void) {
    this.box = box;
    this.list = list;
    this.tail = tail;
    this.onChange = onChange;
  }

  /** A wheel, a touch or a key of the reader: what scrolls now is wanted. */
  acted(): void {
    this.actedAt = performance.now();
    if (this.mode === "opening") this.mode = "reading";
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

  /** Content changed its size: keep the place, or the end, in view. */
  changed(): void {
    this.layTail();
    if (this.mode === "following" || this.mode === "opening") this.toEnd();
    else this.restore();
    this.lastTop = this.box.scrollTop;
    this.remember();
    this.tell();
  }

  /** The reader sent something: its row goes to the top, the answer grows below it. */
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

  /** The row of a prompt got another name when it was stored. */
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

  /** Show a row, a little under the top. */
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
    // Looking for it means walking through everything that is mounted, and this is asked for on every frame.
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

  /** Room below the prompt, so that it can stand at the top while its answer is short. */
  private layTail(): void {
    let room = 0;
    const row = this.promptKey ? this.row(this.promptKey) : null;
    // A row that is just being stored has no name for a moment; the room stays meanwhile.
    if (this.promptKey && !row && this.mode !== "following") return;
    if (row && this.mode !== "following") {
      const used = this.tail.getBoundingClientRect().top - row.getBoundingClientRect().top;
      // The padding under the tail is room as well.
      room = Math.max(0, this.box.clientHeight - used - 16);
    }
    const height = `${Math.floor(room)}px`;
    if (this.tail.style.height !== height) this.tail.style.height = height;
  }

  /** Which row is under the eye, and where. */
  private remember(): void {
    const top = this.box.getBoundingClientRect().top;
    const row = this.firstBelow(top + 1);
    this.anchor = row ? { key: row.dataset.key ?? "", offset: row.getBoundingClientRect().top - top } : null;
    // A row of which only the edge is left is not what is read.
    const read = row && row.getBoundingClientRect().bottom <= top + 8 ? row.nextElementSibling : row;
    this.topKey = (read as HTMLElement | null)?.dataset.key ?? null;
  }

  /** The first row that ends below a place. Rows stand one under the other: half of them is out at every look. */
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
      // The name of a day moves up with every older page: it is no place to hold on to.
      if (row.dataset.key && row.dataset.kind !== "day") return row;
    }
    // Below all that is stored: what is being sent.
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
