/** A message of the server. Text in backticks is shown as code. */
export function Commands({ text }: { text: string }) {
  return text.split("`").map((part, index) =>
    index % 2 === 0 ? (
      part
    ) : (
      <code key={index} className="rounded bg-bg3 font-mono text-[0.92em]">
        {part.split(" ").map((word, place) => (
          // Not wrapped: browsers would break a line between the dashes of an option.
          <span key={place}>
            {place > 0 && " "}
            <span className="inline-block max-w-full break-words">{word}</span>
          </span>
        ))}
      </code>
    ),
  );
}
