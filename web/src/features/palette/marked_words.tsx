import { splitAtWords } from "@/chat/search_pills";

/** A text in which the words that were looked for are marked. */
export function MarkedWords({ text, words }: { text: string; words: readonly string[] }) {
  let at = 0;
  return splitAtWords(text, words).map((piece, index) => {
    const key = at;
    at += piece.length;
    return index % 2 === 1 ? (
      <mark key={`m${key}`} className="rounded-xs bg-mark text-text">
        {piece}
      </mark>
    ) : (
      piece
    );
  });
}
