import { Component, type RefObject } from "react";

interface Props {
  /** The list of stored rows. */
  list: RefObject<HTMLElement | null>;
  /** The rows. The selection is looked at when they change. */
  rows: readonly unknown[];
}

/** A selection in the running step: its text, its offset in the text of the step, and the last stored row. */
interface Selected {
  text: string;
  offset: number;
  isBackward: boolean;
  last: Element | null;
}

const LIVE = "[data-testid=live]";

/**
 * Keeps the text that the user has selected in the running step when the step is stored. Its elements are replaced by
 * those of its rows then, and the browser would drop the selection. Renders nothing.
 */
export class SelectionKeeper extends Component<Props> {
  override getSnapshotBeforeUpdate(before: Props): Selected | null {
    const list = this.props.list.current;
    const selection = document.getSelection();
    if (before.rows === this.props.rows || !list || !selection || selection.isCollapsed) return null;
    const live = elementOf(selection.anchorNode)?.closest(LIVE);
    if (!live?.contains(selection.focusNode) || !list.parentElement?.contains(live)) return null;
    const range = selection.getRangeAt(0);
    const head = document.createRange();
    head.selectNodeContents(live);
    head.setEnd(range.startContainer, range.startOffset);
    const isBackward = range.startContainer !== selection.anchorNode || range.startOffset !== selection.anchorOffset;
    // The last child is a spacer.
    return { text: range.toString(), offset: head.toString().length, isBackward, last: lastRow(list) };
  }

  override componentDidUpdate(_before: Props, _state: unknown, selected: Selected | null): void {
    const list = this.props.list.current;
    if (!selected || !list || !document.getSelection()?.isCollapsed) return;
    const texts: Text[] = [];
    const from = selected.last?.isConnected ? selected.last.nextElementSibling : list.firstElementChild;
    for (let row = from; row; row = row.nextElementSibling) texts.push(...textsOf(row));
    const start = nearest(texts.map((text) => text.data).join(""), selected.text, selected.offset);
    if (start < 0) return;
    const first = placeOf(texts, start, false);
    const last = placeOf(texts, start + selected.text.length, true);
    if (!first || !last) return;
    const [anchor, focus] = selected.isBackward ? [last, first] : [first, last];
    document.getSelection()?.setBaseAndExtent(...anchor, ...focus);
  }

  override render() {
    return null;
  }
}

function elementOf(node: Node | null): Element | null {
  return node instanceof Element ? node : (node?.parentElement ?? null);
}

function lastRow(list: HTMLElement): Element | null {
  return list.lastElementChild?.previousElementSibling ?? null;
}

function* textsOf(root: Element): Generator<Text> {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) yield walker.currentNode as Text;
}

/** Return where the text occurs, as near as possible to this offset; -1 if nowhere. */
export function nearest(whole: string, text: string, offset: number): number {
  const before = whole.lastIndexOf(text, offset);
  const after = whole.indexOf(text, offset);
  if (before < 0 || after < 0) return Math.max(before, after);
  return offset - before <= after - offset ? before : after;
}

/** Return the text node at this offset, and the offset in it. An end is at the end of a node, not at the next start. */
function placeOf(texts: readonly Text[], offset: number, isEnd: boolean): [Text, number] | null {
  let left = offset;
  for (const text of texts) {
    if (left < text.length || (isEnd && left === text.length)) return [text, left];
    left -= text.length;
  }
  return null;
}
