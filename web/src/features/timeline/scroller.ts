/** Scrolling of the timeline: its mode, and the row that keeps its position. It works on the DOM and renders nothing. */
export type Mode = "opening" | "anchored" | "following" | "reading";

const NEAR_END_PX = 48;
const USER_ACT_MS = 600;
/** More rows than are in view, as a rule. */
const MOST_ANCHORS = 16;
/** The end counts as visible within this distance. Chosen: about the height of the last block, which changes. */
const UNSEEN_PX = 400;
/** The row here is at the top of the view for the reader: the bar of prompts is above it. */
const LINE_PX = 41;
/** A row of which only the edge is visible does not count. */
const EDGE_PX = 8;

export interface ScrollerState {
  mode: Mode;
  /** The distance from the end of the view to the end of the content. */
  below: number;
  /** The row at the top of the view, below the bar of prompts. */
  top: string | null;
  /** The first row that is visible without the bar. */
  first: string | null;
}

interface Anchor {
  key: string;
  offset: number;
}

export class Scroller {
  mode: Mode = "opening";
  /** Whether the view follows the agent until the user scrolls up. */
  follows = true;
  /** Whether the end of the content is visible, as of the last check. Growing text only moves the end down. */
  isEndSeen = true;
  /** The rows in view, from the top. The first of them that still exists keeps its position. */
  private anchors: readonly Anchor[] = [];
  private lastTop = 0;
  private actedAt = Number.NEGATIVE_INFINITY;
  private promptKey: string | null = null;
  private topKey: string | null = null;
  private firstKey: string | null = null;
  /** When the user last touched the transcript, even if a command has scrolled it since. */
  private touchedAt = Number.NEGATIVE_INFINITY;
  private found: HTMLElement | null = null;
  private readonly box: HTMLElement;
  /** The list of rows. Its first and last child are spacers for rows that are not mounted. */
  private readonly list: HTMLElement;
  private readonly tail: HTMLElement;
  /** Returns the offset in the list of a row that is not mounted; null if there is no such row. */
  private readonly offsetOf: (key: string) => number | null;
  private readonly onChange: (state: ScrollerState) => void;

  constructor(
    box: HTMLElement,
    list: HTMLElement,
    tail: HTMLElement,
    offsetOf: (key: string) => number | null,
    onChange: (state: ScrollerState) => void,
  ) {
    this.box = box;
    this.list = list;
    this.tail = tail;
    this.offsetOf = offsetOf;
    this.onChange = onChange;
  }

  /** The keys of the rows in view. */
  get seen(): readonly string[] {
    return this.anchors.map((anchor) => anchor.key);
  }

  /** Note a wheel, touch or key event: the next scroll event is caused by the user. */
  acted(): void {
    this.actedAt = performance.now();
    this.touchedAt = this.actedAt;
    if (this.mode === "opening") this.mode = "reading";
  }

  /** Note that the next scroll events are caused by a command, even if the user has just turned the wheel. */
  private commanded(): void {
    this.actedAt = Number.NEGATIVE_INFINITY;
  }

  /** The rows of a chat that opened have their heights. */
  endOpening(): void {
    if (this.mode === "opening") this.setMode(this.follows ? "following" : "reading");
  }

  /** The user opens something: the view stays there, even at the end. */
  opened(): void {
    if (this.mode === "following" || this.mode === "opening") this.setMode("reading");
  }

  /** The selection of the page has changed. The view no longer follows the agent while text in it is selected. */
  selected(): void {
    if (this.mode !== "following" || !this.isSelecting()) return;
    this.setMode("reading");
    this.remember();
    this.tell();
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
    // The answer below a sent message has filled the view.
    if (this.mode === "anchored" && this.follows && this.tail.offsetHeight === 0 && this.below() > 0) {
      this.setMode(this.isSelecting() ? "reading" : "following");
    }
    // The event of a selection that was just made may still be on its way.
    if (this.mode === "following" && this.isSelecting()) this.setMode("reading");
    if (this.mode === "following" || this.mode === "opening") this.toEnd();
    else this.restore();
    this.lastTop = this.box.scrollTop;
    this.remember();
    this.tell();
  }

  /** Scroll a sent message to the top; the answer grows below it. Return whether its row is mounted. */
  anchorTo(key: string): boolean {
    this.commanded();
    this.promptKey = key;
    this.mode = "anchored";
    this.layTail();
    const row = this.row(key);
    if (row) this.box.scrollTop += row.getBoundingClientRect().top - this.box.getBoundingClientRect().top;
    this.lastTop = this.box.scrollTop;
    this.remember();
    this.tell();
    return row !== null;
  }

  /** Change the key of a sent message, because it was stored: its row keeps its place. Return whether it is known. */
  renameAnchor(from: string, to: string): boolean {
    this.anchors = this.anchors.map((anchor) => (anchor.key === from ? { ...anchor, key: to } : anchor));
    if (this.promptKey !== from) return false;
    this.promptKey = to;
    return true;
  }

  /** The anchored message went to the queue, so it has no row for now. */
  dropAnchor(key: string): void {
    if (this.promptKey === key) this.setMode(this.follows ? "following" : "reading");
  }

  /** Return whether a message that the user sent at this time will be in view, or the user has scrolled since. */
  keepsTo(sentAt: number): boolean {
    const isFollowing = this.mode === "following" || (this.mode === "anchored" && this.follows);
    return isFollowing || this.touchedAt > sentAt;
  }

  follow(): void {
    this.commanded();
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
    this.commanded();
    this.mode = "reading";
    this.box.scrollTop += row.getBoundingClientRect().top - this.box.getBoundingClientRect().top - LINE_PX + 1;
    this.lastTop = this.box.scrollTop;
    this.remember();
    this.tell();
    return true;
  }

  place(): Anchor | null {
    return this.mode === "following" || this.below() < NEAR_END_PX ? null : (this.anchors[0] ?? null);
  }

  restorePlace(place: Anchor): void {
    this.mode = "reading";
    this.anchors = [place];
    this.restore();
  }

  private row(key: string): HTMLElement | null {
    // Cached, because a lookup in the DOM is slow and this runs in every frame.
    if (!this.found?.isConnected || this.found.dataset.key !== key) {
      this.found = this.box.querySelector<HTMLElement>(`[data-key="${CSS.escape(key)}"]`);
    }
    return this.found;
  }

  /** Return whether the user has selected text in the timeline. */
  private isSelecting(): boolean {
    const selection = document.getSelection();
    return selection !== null && !selection.isCollapsed && this.box.contains(selection.anchorNode);
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

  /** Remember the visible rows and their offsets. */
  private remember(): void {
    const { top, height } = this.box.getBoundingClientRect();
    // A hidden view shows no rows, and has its position when it is shown again.
    if (height === 0) return;
    const first = this.firstBelow(top + 1);
    const anchors: Anchor[] = [];
    let row = first;
    while (row && anchors.length < MOST_ANCHORS) {
      const offset = row.getBoundingClientRect().top - top;
      if (offset >= height) break;
      if (isAnchor(row)) anchors.push({ key: row.dataset.key ?? "", offset });
      row = row.nextElementSibling as HTMLElement | null;
    }
    if (anchors.length === 0) {
      // The running step fills the view. It has no row yet, so the row above it keeps its position.
      const last = this.list.lastElementChild?.previousElementSibling as HTMLElement | null | undefined;
      const offset = last ? last.getBoundingClientRect().top - top : 0;
      if (last && isAnchor(last) && this.list.getBoundingClientRect().bottom <= top + 1) {
        anchors.push({ key: last.dataset.key ?? "", offset });
      }
    }
    this.anchors = anchors;
    this.firstKey = this.firstBelow(top + EDGE_PX)?.dataset.key ?? null;
    // Where the running step is, which has no row yet, it belongs to the last row.
    const above = this.list.lastElementChild?.previousElementSibling as HTMLElement | null | undefined;
    this.topKey = (this.firstBelow(top + LINE_PX) ?? above)?.dataset.key ?? null;
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
      if (isAnchor(row)) return row;
    }
    // Below the stored rows are the messages that are being sent.
    for (const row of this.tail.previousElementSibling?.children ?? []) {
      if ((row as HTMLElement).dataset.key && row.getBoundingClientRect().bottom > edge) return row as HTMLElement;
    }
    return null;
  }

  private restore(): void {
    const anchor =
      this.anchors.find(({ key }) => this.row(key)) ?? this.anchors.find(({ key }) => this.topOf(key) !== null);
    const now = anchor && this.topOf(anchor.key);
    if (!anchor || typeof now !== "number") return;
    const moved = now - this.box.getBoundingClientRect().top - anchor.offset;
    if (Math.abs(moved) >= 1) this.box.scrollTop += moved;
  }

  /** Return where a row begins on the screen, even if it is not mounted; null if there is no such row. */
  private topOf(key: string): number | null {
    const row = this.row(key);
    if (row) return row.getBoundingClientRect().top;
    const offset = this.offsetOf(key);
    return offset === null ? null : this.list.getBoundingClientRect().top + offset;
  }

  private tell(): void {
    const below = this.below();
    this.isEndSeen = below < UNSEEN_PX;
    this.onChange({ mode: this.mode, below, top: this.topKey, first: this.firstKey });
  }
}

/** Return whether a row can keep its position. The key of a day row changes when older messages are loaded. */
function isAnchor(row: HTMLElement): boolean {
  return row.dataset.key !== undefined && row.dataset.kind !== "day";
}
